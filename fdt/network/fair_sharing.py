"""Division of shared links among flows: max-min fairness.

No flow's rate can be raised without lowering that of a flow with an equal or lower rate. Flows of a fair transport
converge to these rates (Bertsekas and Gallager, Data Networks, 2nd edition, section 6.5.2), and network simulators such
as SimGrid use them as their fluid model. A first-in, first-out queue would instead delay all flows behind one large
tensor, which packet networks do not.
"""

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
Paths = npt.NDArray[np.int64]


def fair_rates(capacity: Floats, paths: Paths) -> Floats:
    """Compute each flow's rate by progressive filling.

    Args:
        capacity: (channels,) bytes/s of each channel. The last one is a placeholder without a limit.
        paths: (flows, length) channels of each flow, padded with the placeholder.

    Returns:
        (flows,) bytes/s; infinite where no channel limits.
    """
    rates = np.full(len(paths), np.inf)
    left, load = capacity, np.bincount(paths.ravel(), minlength=len(capacity))
    rising = np.arange(len(paths))
    while len(rising):
        share = left[paths] / load[paths]  # only channels in use: a large cluster has many others
        least = share.min()
        if least == np.inf:
            break
        stuck = (share <= least * (1 + 1e-12)).any(axis=1)
        rates[rising[stuck]] = least
        taken = np.bincount(paths[stuck].ravel(), minlength=len(capacity))
        left, load = np.maximum(left - least * taken, 0.0), load - taken
        rising, paths = rising[~stuck], paths[~stuck]
    return rates
