"""The process group of a replicated script: rank 0's side, the other ranks' side, and the rendezvous."""
