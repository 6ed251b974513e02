"""Who gets how much of a shared link: max-min fairness.

Nobody's rate can be raised but by lowering that of somebody who has no more: what flows of a fair transport settle at
(Bertsekas and Gallager, Data Networks, 2nd edition, section 6.5.2), and the fluid model of network simulators such as
SimGrid. A queue, first in first out, would instead let one large tensor hold up all behind it; packet networks do not.
"""

import numpy as np
import numpy.typing as npt

FEW = 12  # flows: fewer are done in Python before NumPy's calls have begun

Floats = npt.NDArray[np.float64]
Paths = npt.NDArray[np.int64]


def fair_rates(capacity: Floats, paths: Paths) -> Floats:
    """The rate of each flow by progressive filling.

    capacity: of each channel; the last is a stand-in that limits nobody.  paths: (flows, length), channels of each
    flow, filled up with the stand-in. Rates are infinite where no channel limits.
    """
    return np.array(_of_few(capacity, paths)) if len(paths) < FEW else _of_many(capacity, paths)


def _of_many(capacity: Floats, paths: Paths) -> Floats:
    rates = np.full(len(paths), np.inf)
    left, load = capacity, np.bincount(paths.ravel(), minlength=len(capacity))
    rising = np.arange(len(paths))
    while len(rising):
        share = left[paths] / load[paths]  # of a large cluster's channels, those alone that anything crosses
        least = share.min()
        if least == np.inf:
            break
        stuck = (share <= least * (1 + 1e-12)).any(axis=1)
        rates[rising[stuck]] = least
        taken = np.bincount(paths[stuck].ravel(), minlength=len(capacity))
        left, load = np.maximum(left - least * taken, 0.0), load - taken
        rising, paths = rising[~stuck], paths[~stuck]
    return rates


def _of_few(capacity: Floats, paths: Paths) -> list[float]:
    """The same to the bit, number by number."""
    ways = paths.tolist()
    rates, load = [float("inf")] * len(ways), dict[int, int]()
    for way in ways:
        for channel in way:
            load[channel] = load.get(channel, 0) + 1
    left = {channel: float(capacity[channel]) for channel in load}
    rising = list(range(len(ways)))
    while rising:
        share = {channel: left[channel] / load[channel] for channel in load}
        least = min(share.values())
        if least == float("inf"):
            break
        full = {channel for channel in share if share[channel] <= least * (1 + 1e-12)}
        stuck = [flow for flow in rising if not full.isdisjoint(ways[flow])]
        for flow in stuck:
            rates[flow] = least
            rising.remove(flow)
        if rising:
            _take(least, [channel for flow in stuck for channel in ways[flow]], left, load)
    return rates


def _take(rate: float, crossed: list[int], left: dict[int, float], load: dict[int, int]) -> None:
    """Flows of `rate` need no more of the channels that they cross."""
    for channel in set(crossed):
        count = crossed.count(channel)
        left[channel] = max(left[channel] - rate * count, 0.0)
        load[channel] -= count
        if not load[channel]:
            del load[channel]
