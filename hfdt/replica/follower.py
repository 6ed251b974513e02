"""The process of a rank of a replicated script: `python -m hfdt.replica.follower`. The command starts it."""

from client_shim.replica.follow import follow
from hfdt.replica.factory import make_rank

if __name__ == "__main__":
    follow(make_rank)
