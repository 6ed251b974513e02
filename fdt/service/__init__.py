"""The conversation over gRPC: client <-> engine (TrainingService) and engine <-> members (MemberService)."""
