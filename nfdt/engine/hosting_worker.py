"""Process of a single worker that hosts its parameter server: `python -m nfdt.engine.hosting_worker`."""

from fdt.environment import warm_up
from fdt.service.member import Member
from nfdt.worker.process import NfdtWorker


def main() -> None:
    """Run the worker and its server until the engine ends them."""
    member = Member.attach("worker")
    warm_up(member.blobs, computes=True)
    from nfdt.server.local import LocalServer  # imports TensorFlow

    NfdtWorker(member, LocalServer(member.blobs).serve).run()


if __name__ == "__main__":
    main()
