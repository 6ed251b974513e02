"""Process of a worker of a replica script: `python -m nfdt.replica.follower`, started by the command."""

from client_shim.replica.follow import follow
from nfdt.replica.factory import make_rank

if __name__ == "__main__":
    follow(make_rank)
