"""`nfdt advise`: which algorithm is fastest on a described cluster, from stored results and a short run of the script.

    expected time = batches to the same accuracy  x  seconds of a batch on the cluster

table.py     the first factor, over that of one machine: from benchmarks/tournament.py, whose rows are table.json
pushes.py    the second factor, for NFDT's algorithms: its scheduler on a simulated clock, without gradients
             (hfdt/cost/on_cluster.py: for HFDT's)
ranking.py   both, for all algorithms: the order, and how sure it is
command.py   the command: it measures the script's step, and prints the answer
"""

from fdt.errors import UserError


class NoAnswer(UserError):
    """No algorithm can be advised. The message says why, and what to do instead."""

    def __init__(self, reason: str) -> None:
        super().__init__(f"no answer: {reason}")
