"""A process group of replicated scripts' ranks: rank 0's side, the other ranks', and how they find each other."""
