"""simpy's clock, as the simulators let it run."""

from typing import Any

import simpy

_STANDSTILL = "No scheduled events left"  # simpy's words


def run_until(env: simpy.Environment, event: Any) -> bool:
    """Let time pass until `event`. False where nothing will happen any more and it has not come."""
    try:
        env.run(until=event)
    except RuntimeError as error:
        if _STANDSTILL not in str(error):
            raise
        return False
    return True
