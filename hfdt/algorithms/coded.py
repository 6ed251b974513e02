"""Coded synchronous SGD: work is done r times over, so that one multicast packet serves r workers at once.

Li, Maddah-Ali, Yu and Avestimehr, "A Fundamental Tradeoff Between Computation and Communication in Distributed
Computing", 2018, arXiv:1604.07086, section IV, whose shuffle CSSGD applies to gradients. The batch is cut into blocks,
each worked on by several workers. A gradient has G words. Three placements:

    paper   C(n, r) blocks, one for each r of the n workers. In every r + 1 of them each lacks one block, which the
            other r know: each sends the XOR (or sum) of 1/r of what each other lacks, and who receives it takes away
            what it knows itself. A worker sends C(n-1, r) G / r words; uncoded, the same blocks cost C(n-1, r) G.
    groups  r divides n: n / r blocks, one for each r workers in a row, each of whom sends 1/r of the sum: G / r.
    cyclic  ours, for any r: n blocks, worker k has k .. k + r - 1. The gradient is cut into n slices; in slice c the
            workers c, c + r, c + 2r .. send the sums of what they have and nobody before them: ceil(n / r) G / n.

SSGD that sums before it multicasts sends G. Workers end with the same bits, whoever sent what.
"""

from collections.abc import Callable, Mapping
from functools import partial, reduce
from itertools import combinations
from typing import Any

import numpy as np
import numpy.typing as npt

from hfdt.algorithm import BlockAlgorithm, BlockPlan, Multicast

Words = npt.NDArray[Any]  # a vector of float32 or float64
RANGE = 10.0  # of what int32 can hold; the paper's
SCALE = (2**31 - 1) / RANGE  # a value is off by 1 / (2 SCALE) = 2.3e-9 at most, a sum of k blocks by k times that


def rule(
    redundancy: int | str = "auto", coding: str = "xor", placement: str = "paper", shares: str = "equal"
) -> BlockAlgorithm:
    """redundancy: r, or "auto", from measured times.  coding: "xor" | "int32", of the paper placement's packets.

    shares: of the work, by worker: "equal", "measured", or numbers such as "2,1,1". The sum is exact whatever they are.
    """
    if redundancy != "auto" and not (isinstance(redundancy, int) and redundancy >= 1):
        raise ValueError(f"coded: redundancy must be 1 or more, or auto. Received: redundancy={redundancy!r}")
    if coding not in ("xor", "int32"):
        raise ValueError(f"coded: coding must be xor or int32. Received: coding={coding!r}")
    if placement not in ("paper", "groups", "cyclic"):
        raise ValueError(f"coded: placement must be paper, groups or cyclic. Received: placement={placement!r}")
    plans: dict[str, Callable[[int, int], BlockPlan]] = {
        "paper": partial(_paper, coding),
        "groups": _groups,
        "cyclic": _cyclic,
    }
    return BlockAlgorithm(plans[placement], None if redundancy == "auto" else int(redundancy), _speeds(shares))


def _speeds(shares: str) -> tuple[float, ...] | None:
    if shares in ("equal", "measured"):
        return () if shares == "equal" else None
    try:
        speeds = tuple(float(share) for share in shares.split(","))
    except ValueError:
        speeds = (0.0,)
    if not all(0 < speed < float("inf") for speed in speeds):
        raise ValueError(
            "coded: shares must be equal, measured, or a number above 0 for each worker, as 2,1,1. "
            f"Received: shares={shares!r}"
        )
    return speeds


# -- paper -------------------------------------------------------------------------------------------------------------
def _paper(coding: str, n: int, r: int) -> BlockPlan:
    _check(n, r)
    owners = list(combinations(range(n), r))
    number = {block: i for i, block in enumerate(owners)}

    def total(own: Mapping[int, Words], air: Multicast) -> Words:
        like = next(iter(own.values()))
        code: Any = Xor(like.dtype) if coding == "xor" else Int32(like.dtype)
        known = {owners[b]: _segments(code.encode(vector), r) for b, vector in own.items()}
        lacked: dict[tuple[int, ...], list[Words]] = {}
        for team in combinations(range(n), r + 1):
            if air.rank not in team:
                continue
            for sender in team:
                blocks = {k: _without(team, k) for k in team if k != sender and k != air.rank}
                terms = [known[block][block.index(sender)] for block in blocks.values()]
                if sender == air.rank:
                    air.multicast(reduce(code.add, terms), sender, team)
                    continue
                packet = air.multicast(np.empty_like(next(iter(known.values()))[0]), sender, team)
                lacked.setdefault(_without(team, air.rank), []).append(reduce(code.take, terms, packet))
        vectors = known | lacked  # senders come in the order of a block's owners: so do its segments
        return _added([code.decode(np.concatenate(list(vectors[block]))[: len(like)]) for block in number])

    def sent_words(words: int) -> int:
        teams = len(list(combinations(range(n - 1), r)))
        return teams * -(-words // r)

    return BlockPlan(owners, total, sent_words, needs_same_bits=True)


class Xor:
    """Packets of the floats' bits: exact."""

    def __init__(self, dtype: Any) -> None:
        self._dtype = dtype

    def encode(self, vector: Words) -> Words:
        return vector.view(np.uint32 if self._dtype.itemsize == 4 else np.uint64)

    def decode(self, words: Words) -> Words:
        return words.view(self._dtype)

    def add(self, left: Words, right: Words) -> Words:
        return left ^ right

    take = add


class Int32:
    """Packets of fixed-point numbers, four bytes each; sums may wrap, and come back when terms are taken away."""

    def __init__(self, dtype: Any) -> None:
        self._dtype = dtype

    def encode(self, vector: Words) -> Words:
        """Raises ValueError for what is out of range: it would be clipped."""
        largest = np.max(np.abs(vector), initial=0.0)
        if not largest <= RANGE:
            raise ValueError(
                f"--coding int32 holds values in [-{RANGE:g}, {RANGE:g}]. Received: {largest:g} in a block's gradient; "
                "--coding xor has no range"
            )
        return np.rint(vector.astype(np.float64) * SCALE).astype(np.int32)

    def decode(self, words: Words) -> Words:
        return (words / SCALE).astype(self._dtype)

    def add(self, left: Words, right: Words) -> Words:
        return left + right

    def take(self, left: Words, right: Words) -> Words:
        return left - right


def _segments(words: Words, r: int) -> Words:
    """(r, ceil(len / r)), zeros at the end."""
    width = -(-len(words) // r)
    return np.pad(words, (0, r * width - len(words))).reshape(r, width)


def _without(team: tuple[int, ...], worker: int) -> tuple[int, ...]:
    return tuple(k for k in team if k != worker)


# -- groups ------------------------------------------------------------------------------------------------------------
def _groups(n: int, r: int) -> BlockPlan:
    _check(n, r)
    if n % r:
        raise ValueError(f"coded: placement groups needs a redundancy that divides {n} workers. Received: {r}")
    owners = [tuple(range(first, first + r)) for first in range(0, n, r)]

    def total(own: Mapping[int, Words], air: Multicast) -> Words:
        vector = own[air.rank // r]
        parts = _segments(vector, r)
        sent = [air.multicast(parts[k % r], k, tuple(range(n))) for k in range(n)]
        return _added([np.concatenate(sent[g : g + r])[: len(vector)] for g in range(0, n, r)])

    return BlockPlan(owners, total, lambda words: -(-words // r))


# -- cyclic ------------------------------------------------------------------------------------------------------------
def _cyclic(n: int, r: int) -> BlockPlan:
    _check(n, r)
    owners = [tuple(sorted((b - i) % n for i in range(r))) for b in range(n)]

    def total(own: Mapping[int, Words], air: Multicast) -> Words:
        words = len(next(iter(own.values())))
        mine = {b: _segments(vector, n) for b, vector in own.items()}
        slices = []
        for c in range(n):
            sums = []
            for first in range(0, n, r):
                sender = (c + first) % n
                blocks = [(c + i) % n for i in range(first, min(first + r, n))]
                known = sender == air.rank
                packet = _added([mine[b][c] for b in blocks]) if known else np.empty_like(next(iter(mine.values()))[c])
                sums.append(air.multicast(packet, sender, tuple(range(n))))
            slices.append(_added(sums))
        return np.concatenate(slices)[:words]

    return BlockPlan(owners, total, lambda words: -(-n // r) * -(-words // n))


# -- all ---------------------------------------------------------------------------------------------------------------
def _added(vectors: list[Words]) -> Words:
    """In this very order. What is not finite is the optimizer's to judge, as it would be alone."""
    whole: Words = vectors[0].copy()
    with np.errstate(invalid="ignore", over="ignore"):
        for vector in vectors[1:]:
            whole += vector
    return whole


def _check(n: int, r: int) -> None:
    if not 1 <= r < n:
        raise ValueError(f"coded: redundancy must be below the number of workers, {n}. Received: {r}")
