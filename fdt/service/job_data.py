"""A job's data on a rank: its sources, and the queues of batches that the client draws."""

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from fdt.blobs import Blobs
from fdt.job import Data, FeedData, JobSpec
from fdt.rpc.session_pb2 import FeedWanted
from fdt.service.member import Member

if TYPE_CHECKING:  # imports TensorFlow, which a worker imports in its own time
    from fdt.data import Source


def fed(spec: JobSpec) -> list[FeedData]:
    """Return the data that the client draws. Batches may still arrive when their job has ended."""
    return [data for data in (spec.data, spec.validation) if isinstance(data, FeedData)]


def feeds(spec: JobSpec, member: Member, want: Callable[[FeedWanted], None]) -> dict[str, Any]:
    """Return the queues of those data by name, which from now on receive the member's batches.

    Args:
        spec: The job.
        member: This process.
        want: Requests batches of the client.
    """
    from fdt.data import Feed

    found = {data.name: Feed(data.name, member.blobs, want) for data in fed(spec)}
    member.pass_feeds_to(lambda batch: found[batch.name].offer(batch) if batch.name in found else None)
    return found


def opened(spec: JobSpec, data: Data, blobs: Blobs, queues: Mapping[str, Any]) -> "Source":
    """Return the source of a job's training or validation data.

    Args:
        spec: The job.
        data: One of its data.
        blobs: The store of the data's arrays.
        queues: Result of `feeds`.
    """
    from fdt.data import open_source

    return open_source(
        data,
        spec.fit,
        blobs,
        spec.seed,
        training=data is spec.data,
        options=spec.options,
        feed=queues.get(data.name) if isinstance(data, FeedData) else None,
        flavor=spec.program.flavor,
    )
