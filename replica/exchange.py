"""Collectives on NumPy arrays: Partials are summed and Shards gathered, in few round trips."""

import itertools
from collections.abc import Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from typing import Any

import numpy as np
from ml_dtypes import bfloat16

from fdt.process_group import ReplicaGroup, Sum
from fdt.process_group.streams import INLINE_BYTES
from fdt.typing import Array
from replica.placement import Placement, Shard, global_shape, local_shape

# Dtypes that NumPy cannot add, or adds too coarsely -> the dtype in which they are sent.
_WIDE = {"float16": np.float32, "bfloat16": np.float32, "bool": np.uint8}
_HALVES = {"fp16": np.float16, "bf16": bfloat16}
HALF_FROM = 1024  # elements below which 16 bits save nothing


class GroupedExchange:
    """The replication of local arrays.

    Args:
        group: The ranks.
        compress: Send large float32 Partials as these numbers of 16 bits: "fp16" or "bf16".
        bucket_bytes: Size at which an emitted graph sends a bucket; 0 sends all that is ready together at once.
    """

    def __init__(self, group: ReplicaGroup, *, compress: str | None = None, bucket_bytes: int = 0) -> None:
        self._group, self.half, self.bucket_bytes = group, _HALVES[compress] if compress else None, bucket_bytes
        self.rank, self.size = group.rank, group.size
        self.failure: Exception | None = None  # the error of a collective inside a graph, which TensorFlow wraps
        self._refusal: Exception | None = None
        self._failed, self._first_failed = 0, ""  # operations on rows whose error the script may have caught
        self._thread = ThreadPoolExecutor(1, "exchange")  # one thread: collectives keep the order of their starts
        self._started: Future[list[Array]] | None = None  # the last one

    def start(self, name: str, arrays: Sequence[Array], placements: Sequence[Placement]) -> Future[list[Array]]:
        """Start `replicated` in a thread. Later collectives wait for it."""
        self._started = self._thread.submit(self._replicated, name, arrays, placements)
        return self._started

    def refuse(self, error: Exception) -> None:
        """Let later collectives of this rank raise `error`, because the rank has strayed from the others."""
        self.failure = self._refusal = error

    def failed(self, operation: str) -> None:
        """Note an operation that raised an error: other ranks, whose rows are others, may have gone on without it.

        Args:
            operation: The operation, and its line in the script.
        """
        self._failed, self._first_failed = self._failed + 1, self._first_failed or operation

    def replicated(self, name: str, arrays: Sequence[Array], placements: Sequence[Placement]) -> list[Array]:
        """Return the global arrays.

        Partials of one dtype are summed in one collective, and all Shards are gathered in one. Where that would be
        several, and all ranks' arrays fit into one message, one gather sends everything and each rank sums the Partials
        itself. Up to that size a collective takes one round trip, whatever it sends.

        Args:
            name: The collective's name, the same on every rank.
            arrays: This rank's local arrays.
            placements: The placement of each, Partial or Shard.
        """
        if self._started is not None:
            wait([self._started])  # an operation that failed may have ended the graph that waits for it
            self._started = None
        return self._replicated(name, arrays, placements)

    def _replicated(self, name: str, arrays: Sequence[Array], placements: Sequence[Placement]) -> list[Array]:
        if self._refusal is not None:
            raise self._refusal
        if self._failed:
            name += f", after failed operations: {self._failed} ({self._first_failed}: check its rows before it)"
        sent = [np.ravel(a).astype(self._wire(a, p), copy=False) for a, p in zip(arrays, placements, strict=True)]
        kinds = ["" if isinstance(p, Shard) else s.dtype.str for s, p in zip(sent, placements, strict=True)]
        counts = [self._counts(a, s, p) for a, s, p in zip(arrays, sent, placements, strict=True)]
        if len(set(kinds)) > 1 and sum(map(sum, counts)) <= INLINE_BYTES:
            kinds = [""] * len(kinds)
        out: list[Any] = [None] * len(arrays)
        try:
            for kind in sorted(set(kinds)):
                chosen = [i for i, each in enumerate(kinds) if each == kind]
                vectors, sizes = [sent[i] for i in chosen], [counts[i] for i in chosen]
                made = self._added(name, vectors) if kind else self._gathered(name, vectors, sizes)
                for i, parts in zip(chosen, made, strict=True):
                    out[i] = _joined(parts, arrays[i], placements[i])
        except Exception as error:
            self.failure = error
            raise
        return out

    def rank_0s(self, name: str, arrays: Sequence[Array]) -> list[Array]:
        """Return rank 0's arrays. Numbers, shapes and dtypes of `arrays` agree across ranks."""
        flat = [np.ravel(a) for a in arrays]
        mine = [a if self.rank == 0 else a[:0] for a in flat]
        found = self.replicated(name, mine, [Shard(0, (len(a), *[0] * (self.size - 1))) for a in flat])
        return [f.reshape(a.shape) for f, a in zip(found, arrays, strict=True)]

    def local(self, array: Array, placement: Shard) -> Array:
        """Return this rank's part of a global array."""
        low, high = placement.bounds(self.rank)
        return array[(slice(None),) * placement.axis + (slice(low, high),)]

    def _added(self, name: str, vectors: Sequence[Array]) -> list[list[Array]]:
        """Return the sum of each vector over ranks, by one all_reduce."""
        vector = vectors[0] if len(vectors) == 1 else np.concatenate(vectors)
        total = self._group.all_reduce(vector, name)
        return [[part] for part in _split(total, [len(v) for v in vectors])]

    def _gathered(self, name: str, vectors: Sequence[Array], counts: Sequence[Sequence[int]]) -> list[list[Array]]:
        """Return all ranks' parts of each vector, by one all_gather of bytes. `counts`: each vector's bytes by rank."""
        packed = [v.view(np.uint8) for v in vectors]
        mine = packed[0] if len(packed) == 1 else np.concatenate(packed)
        whole = self._group.all_gather(mine, [sum(of) for of in zip(*counts, strict=True)], name)
        parts = iter(_split(whole, [n for of in zip(*counts, strict=True) for n in of]))
        by_rank = [[next(parts).view(v.dtype) for v in vectors] for _ in range(self.size)]
        return [list(of) for of in zip(*by_rank, strict=True)]

    def _counts(self, array: Array, sent: Array, placement: Placement) -> list[int]:
        """Return the number of bytes that each rank sends."""
        if not isinstance(placement, Shard):
            return [sent.nbytes] * self.size
        row = int(np.prod(array.shape[: placement.axis] + array.shape[placement.axis + 1 :])) * array.itemsize
        return [n * row for n in placement.sizes]

    def _wire(self, array: Array, placement: Placement) -> Any:
        if isinstance(placement, Shard):
            return array.dtype
        if self.half and array.dtype == np.float32 and array.size >= HALF_FROM:
            return self.half
        return _WIDE.get(array.dtype.name, array.dtype)


def arrays_of_rank_0(group: ReplicaGroup, held: Mapping[str, Sequence[Array]], name: str) -> dict[str, list[Array]]:
    """Return rank 0's arrays by their names; the other ranks may have other arrays, or none."""
    mine = {key: [[a.dtype.name, a.shape] for a in arrays] for key, arrays in held.items()}
    forms = group.broadcast(mine, f"forms of {name}")
    like = [np.empty(shape, dtype) for key in forms for dtype, shape in forms[key]]
    own = [a for arrays in held.values() for a in arrays] if group.rank == 0 else like
    found = iter(GroupedExchange(group).rank_0s(name, own))
    return {key: [next(found) for _ in forms[key]] for key in forms}


def _joined(parts: Sequence[Array], like: Array, placement: Placement) -> Array:
    """Return the global array of the ranks' vectors, or of their sum. `like` is this rank's array."""
    whole = global_shape(like.shape, placement)
    if isinstance(placement, Shard):
        arrays = [part.reshape(local_shape(whole, placement, rank)) for rank, part in enumerate(parts)]
        return np.concatenate(arrays, placement.axis)
    total = parts[0] if len(parts) == 1 else Sum(parts[0]).of(parts)
    with np.errstate(over="ignore"):  # a sum of float16 is Inf without a warning in TensorFlow, too
        return total.reshape(like.shape).astype(like.dtype, copy=False)


def _split(vector: Array, counts: Sequence[int]) -> list[Array]:
    ends = list(itertools.accumulate(counts))
    return [vector[end - count : end] for end, count in zip(ends, counts, strict=True)]
