"""Coded synchronous SGD: r workers compute each block of a batch, so that one multicast packet serves r workers.

Li, Maddah-Ali, Yu and Avestimehr, "A Fundamental Tradeoff Between Computation and Communication in Distributed
Computing", 2018, arXiv:1604.07086, section IV, whose shuffle CSSGD applies to gradients. The batch is divided into
blocks; several workers compute each block. A gradient has G words. Three placements:

    paper   C(n, r) blocks, one for each r of the n workers. In every r + 1 workers each lacks one block, which the r
            others have. Each sends the XOR (or sum) of 1/r of each block that another one lacks; a receiver removes the
            terms that it has itself. A worker sends C(n-1, r) G / r words; uncoded, these blocks cost C(n-1, r) G.
    groups  r divides n: n / r blocks, one for each r consecutive workers, each of which sends 1/r of it: G / r.
    cyclic  ours, for any r: n blocks; worker k has blocks k .. k + r - 1, modulo n. The gradient is divided into n
            slices. In slice c the workers c, c + r, c + 2r .. each send the sum of their blocks, without those that an
            earlier one has sent. A worker sends ceil(n / r) G / n words.

Plain synchronous SGD that sums before it multicasts sends G. All workers end with the same bits, whichever sent which
packet.
"""

from collections.abc import Callable, Mapping
from functools import partial, reduce
from itertools import combinations
from typing import Any

import numpy as np
import numpy.typing as npt

from hfdt.algorithm import BlockAlgorithm, BlockPlan, Multicast

Words = npt.NDArray[Any]  # a vector of float32 or float64
RANGE = 10.0  # the largest value that int32 packets can hold, as in the paper
SCALE = (
    2**31 - 1
) / RANGE  # a value's error is at most 1 / (2 SCALE) = 2.3e-9, that of a sum of k blocks k times as much


def rule(
    redundancy: int | str = "auto", coding: str = "xor", placement: str = "paper", shares: str = "equal"
) -> BlockAlgorithm:
    """Make coded synchronous SGD.

    Args:
        redundancy: r, the number of workers that compute each block; "auto" chooses it from measured times.
        coding: "xor" or "int32": the format of the paper placement's packets.
        placement: "paper", "groups" or "cyclic".
        shares: The division of the work among workers: "equal", "measured", or numbers such as "2,1,1". The sum is
            exact for each of them.

    Raises:
        ValueError: A parameter has none of these values.
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
            "coded: shares must be equal, measured, or a number above 0 for each worker, such as 2,1,1. "
            f"Received: shares={shares!r}"
        )
    return speeds


# -- paper -------------------------------------------------------------------------------------------------------------
def _paper(coding: str, n: int, r: int) -> BlockPlan:
    _check(n, r)
    owners = list(combinations(range(n), r))
    number = {block: i for i, block in enumerate(owners)}

    def total(own: Mapping[int, Words], transport: Multicast) -> Words:
        like = next(iter(own.values()))
        code: Any = Xor(like.dtype) if coding == "xor" else Int32(like.dtype)
        known = {owners[b]: _segments(code.encode(vector), r) for b, vector in own.items()}
        lacked: dict[tuple[int, ...], list[Words]] = {}
        for team in combinations(range(n), r + 1):
            if transport.rank not in team:
                continue
            for sender in team:
                blocks = {k: _without(team, k) for k in team if k != sender and k != transport.rank}
                terms = [known[block][block.index(sender)] for block in blocks.values()]
                if sender == transport.rank:
                    transport.multicast(reduce(code.add, terms), sender, team)
                    continue
                packet = transport.multicast(np.empty_like(next(iter(known.values()))[0]), sender, team)
                lacked.setdefault(_without(team, transport.rank), []).append(reduce(code.take, terms, packet))
        vectors = known | lacked  # senders are in the order of a block's owners, as are its segments
        return _added([code.decode(np.concatenate(list(vectors[block]))[: len(like)]) for block in number])

    def sent_words(words: int) -> int:
        teams = len(list(combinations(range(n - 1), r)))
        return teams * -(-words // r)

    return BlockPlan(owners, total, sent_words, needs_same_bits=True)


class Xor:
    """The coding whose packets are the floats' bits, combined by XOR: exact."""

    def __init__(self, dtype: Any) -> None:
        self._dtype = dtype

    def encode(self, vector: Words) -> Words:
        """View the floats as unsigned integers of their size."""
        return vector.view(np.uint32 if self._dtype.itemsize == 4 else np.uint64)

    def decode(self, words: Words) -> Words:
        """View the integers as floats."""
        return words.view(self._dtype)

    def add(self, left: Words, right: Words) -> Words:
        """Return the packet of two vectors of equal length."""
        return left ^ right

    take = add


class Int32:
    """The coding whose packets are fixed-point numbers of four bytes. Sums may overflow; subtraction undoes it."""

    def __init__(self, dtype: Any) -> None:
        self._dtype = dtype

    def encode(self, vector: Words) -> Words:
        """Convert to fixed point. Raises ValueError for values out of range, which would be clipped."""
        largest = np.max(np.abs(vector), initial=0.0)
        if not largest <= RANGE:
            raise ValueError(
                f"--coding int32 holds values in [-{RANGE:g}, {RANGE:g}]. Received: {largest:g} in a block's gradient; "
                "--coding xor has no such limit"
            )
        return np.rint(vector.astype(np.float64) * SCALE).astype(np.int32)

    def decode(self, words: Words) -> Words:
        """Convert from fixed point."""
        return (words / SCALE).astype(self._dtype)

    def add(self, left: Words, right: Words) -> Words:
        """Return the packet of two vectors of equal length."""
        return left + right

    def take(self, left: Words, right: Words) -> Words:
        """Return the packet `left` without the vector `right`."""
        return left - right


def _segments(words: Words, r: int) -> Words:
    """Divide into r segments: shape (r, ceil(len / r)), padded with zeros."""
    width = -(-len(words) // r)
    return np.pad(words, (0, r * width - len(words))).reshape(r, width)


def _without(team: tuple[int, ...], worker: int) -> tuple[int, ...]:
    return tuple(k for k in team if k != worker)


# -- groups ------------------------------------------------------------------------------------------------------------
def _groups(n: int, r: int) -> BlockPlan:
    _check(n, r)
    if n % r:
        raise ValueError(
            f"coded: placement groups needs a redundancy that divides the number of workers, {n}. Received: {r}"
        )
    owners = [tuple(range(first, first + r)) for first in range(0, n, r)]

    def total(own: Mapping[int, Words], transport: Multicast) -> Words:
        vector = own[transport.rank // r]
        parts = _segments(vector, r)
        sent = [transport.multicast(parts[k % r], k, tuple(range(n))) for k in range(n)]
        return _added([np.concatenate(sent[g : g + r])[: len(vector)] for g in range(0, n, r)])

    return BlockPlan(owners, total, lambda words: -(-words // r))


# -- cyclic ------------------------------------------------------------------------------------------------------------
def _cyclic(n: int, r: int) -> BlockPlan:
    _check(n, r)
    owners = [tuple(sorted((b - i) % n for i in range(r))) for b in range(n)]

    def total(own: Mapping[int, Words], transport: Multicast) -> Words:
        words = len(next(iter(own.values())))
        mine = {b: _segments(vector, n) for b, vector in own.items()}
        slices = []
        for c in range(n):
            sums = []
            for first in range(0, n, r):
                sender = (c + first) % n
                blocks = [(c + i) % n for i in range(first, min(first + r, n))]
                known = sender == transport.rank
                packet = _added([mine[b][c] for b in blocks]) if known else np.empty_like(next(iter(mine.values()))[c])
                sums.append(transport.multicast(packet, sender, tuple(range(n))))
            slices.append(_added(sums))
        return np.concatenate(slices)[:words]

    return BlockPlan(owners, total, lambda words: -(-n // r) * -(-words // n))


# -- all ---------------------------------------------------------------------------------------------------------------
def _added(vectors: list[Words]) -> Words:
    """Sum in this order. A result that is not finite goes to the optimizer, as on a single machine."""
    whole: Words = vectors[0].copy()
    with np.errstate(invalid="ignore", over="ignore"):
        for vector in vectors[1:]:
            whole += vector
    return whole


def _check(n: int, r: int) -> None:
    if not 1 <= r < n:
        raise ValueError(f"coded: redundancy must be below the number of workers, {n}. Received: {r}")
