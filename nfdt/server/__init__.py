"""The parameter server: a scheduler that decides, an applier that computes, and a gRPC service around both."""
