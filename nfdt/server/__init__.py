"""The parameter server: a policy that decides (policy.py), an applier that computes, and a gRPC shell over both."""
