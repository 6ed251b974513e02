"""The gRPC services: client to engine (TrainingService, BlobService) and member process to engine (MemberService)."""
