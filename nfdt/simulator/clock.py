"""The simulated clock of simpy."""

from typing import Any

import simpy

_STANDSTILL = "No scheduled events left"  # text of simpy's error


def run_until(env: simpy.Environment, event: Any) -> bool:
    """Run the simulation until `event`. Return False if no event is left before it."""
    try:
        env.run(until=event)
    except RuntimeError as error:
        if _STANDSTILL not in str(error):
            raise
        return False
    return True
