"""Who gets how much of a shared link: max-min fairness.

Nobody's rate can be raised but by lowering that of somebody who has no more: what flows of a fair transport settle at
(Bertsekas and Gallager, Data Networks, 2nd edition, section 6.5.2), and the fluid model of network simulators such as
SimGrid. A queue, first in first out, would instead let one large tensor hold up all behind it; packet networks do not.
"""

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
Paths = npt.NDArray[np.int64]


def fair_rates(capacity: Floats, paths: Paths) -> Floats:
    """The rate of each flow by progressive filling.

    capacity: of each channel; the last is a stand-in that limits nobody.  paths: (flows, length), channels of each
    flow, filled up with the stand-in. Rates are infinite where no channel limits.
    """
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
