"""The patches of TensorFlow for scripts that train by sessions, common to both engines."""

import contextlib
from collections.abc import Iterator
from typing import Any, Protocol

import tensorflow as tf

from client_shim.replica import classes
from client_shim.replica.sessions.gradients import Gradients, of_sessions
from client_shim.replica.steps import where
from fdt.compat.tensorflow import BaseSession, Optimizer, SecondOrStepTimer, SyncReplicasOptimizer, context, random_seed
from fdt.errors import CaptureError
from fdt.patches import Patch, patched

THREADS = 16  # threads for the operations of one session
DISTRIBUTED = "{name} at {where} distributes the training, which the ranks do already. Remove {name}"
CALLABLE = "training by {name} cannot be divided. Received: {name} at {where}; use Session.run"


class SessionRunner(Protocol):
    """The interface by which an engine runs TensorFlow 1's sessions."""

    gradients: Gradients

    def run(self, original: Any, session: Any, *args: Any, **kwargs: Any) -> Any:
        """Run in place of Session.run."""

    def trains(self, session: Any, fetches: Any) -> bool:
        """Return whether a run of `fetches` trains."""

    def rank_0s(self, what: str, value: Any) -> Any:
        """Return rank 0's `value` on every rank."""


@contextlib.contextmanager
def installed(running: SessionRunner, rank: classes.Exchanging | None = None) -> Iterator[None]:
    """Within the context, `running` runs the sessions.

    Args:
        running: The engine's side.
        rank: Exchanges the gradients of `tf.compat.v1`'s optimizers outside of sessions, for engines that exchange at
            the optimizer.
    """
    of_eager = None if rank is None else classes.apply_gradients(rank)

    def apply_gradients(original: Any, optimizer: Any, *args: Any, **kwargs: Any) -> Any:
        if of_eager is None or of_sessions(tf.compat.v1.get_default_graph()):
            return original(optimizer, *args, **kwargs)
        return of_eager(original, optimizer, *args, **kwargs)

    def due(original: Any, timer: Any, step: Any) -> Any:
        """Return whether a hook acts at this step, by rank 0's clock, because the hook may then fetch more."""
        mine = original(timer, step)
        return mine if timer._every_secs is None else running.rank_0s("a hook's timer", bool(mine))

    def refusing(name: str, reason: str) -> Any:
        def call(original: Any, session: Any, *args: Any, **kwargs: Any) -> Any:
            if running.trains(session, args[0] if args else kwargs.get("fetches", ())):
                raise CaptureError(reason.format(name=name, where=where()))
            return original(session, *args, **kwargs)

        return call

    patches = [
        Patch(BaseSession, "__init__", _with_threads),
        Patch(BaseSession, "run", running.run),
        Patch(BaseSession, "make_callable", refusing("make_callable", CALLABLE)),
        Patch(BaseSession, "partial_run_setup", refusing("partial_run", CALLABLE)),
        Patch(Optimizer, "apply_gradients", apply_gradients),
        Patch(SyncReplicasOptimizer, "__init__", _refuse_sync_replicas),
        Patch(SecondOrStepTimer, "should_trigger_for_step", due),
        Patch(random_seed, "get_seed", _seeded),
    ]
    with running.gradients.installed(), patched(patches):
        yield


def _with_threads(original: Any, session: Any, target: Any = "", graph: Any = None, config: Any = None) -> None:
    """Make a session with enough threads, because gradients of one run wait for each other in them.

    See hfdt/replica/sessions.py.
    """
    if config is None or isinstance(config, tf.compat.v1.ConfigProto):
        given, config = config, tf.compat.v1.ConfigProto()
        config.MergeFrom(given or tf.compat.v1.ConfigProto())
        config.inter_op_parallelism_threads = max(THREADS, config.inter_op_parallelism_threads)
    original(session, target, graph, config)


def _seeded(original: Any, op_seed: Any) -> Any:
    """Draw the random numbers of an unseeded graph from the run's seed, so that they are the same on every rank."""
    graph = tf.compat.v1.get_default_graph()
    if op_seed is not None or not of_sessions(graph) or graph.seed is not None or context.global_seed() is None:
        return original(op_seed)
    graph.seed = context.global_seed()
    try:
        return original(op_seed)
    finally:
        graph.seed = None


def _refuse_sync_replicas(original: Any, optimizer: Any, *args: Any, **kwargs: Any) -> None:
    raise CaptureError(DISTRIBUTED.format(name="SyncReplicasOptimizer", where=where()))
