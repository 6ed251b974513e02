"""A rank of a replica script: `python -m hfdt.replica.follower`, started by the command."""

from client_shim.replica.follow import follow
from hfdt.replica.factory import make_rank

if __name__ == "__main__":
    follow(make_rank)
