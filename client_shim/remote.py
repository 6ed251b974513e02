"""Client side of a job: the commands that Keras's loop sends to the engine and the events that answer them."""

import sys
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from client_shim.preemption import Preemption
from client_shim.row_orders import RowOrders
from client_shim.script import failure_of
from fdt.blobs import Blobs
from fdt.errors import WorkerError
from fdt.job import JobSpec, State
from fdt.keras import is_of_keras
from fdt.report import Reporters
from fdt.rpc import job_pb2
from fdt.rpc import session_pb2 as pb
from fdt.signals import raise_held
from fdt.tensors import numbers
from fdt.trainable import Trainable, left_out, same_bits
from fdt.typing import Array

if TYPE_CHECKING:
    from client_shim.feed import Feeder
    from client_shim.resume.checkpointing import FitCheckpoints
    from fdt.service.client import Conversation


class Remote:
    """The remote training of one `fit`: turns the requests of Keras's loop into commands and waits for their events."""

    def __init__(
        self,
        job: JobSpec,
        trainable: Trainable,
        talk: "Conversation",
        blobs: Blobs,
        reporters: Reporters,
        fit_checkpoints: "FitCheckpoints | None" = None,
        preemption: Preemption | None = None,
        check_program: Callable[[], Any] = lambda: None,
        orders: RowOrders | None = None,
        engine: str = "",
    ) -> None:
        self._fit_checkpoints, self._orders = fit_checkpoints, orders
        self._engine = engine
        self._sends_kept = engine == "hfdt"  # in the first epoch, states that a metric's reset keeps; NFDT sums its own
        self._preemption = preemption or Preemption()
        self._suspendable = self._suspends = False
        self._job, self._trainable, self._blobs, self._reporters = job, trainable, blobs, reporters
        self._talk, self._events = talk, talk.events()
        self._feeder: Feeder | None = None
        self._model = trainable.model_arrays()  # the workers' values as of the last message
        self._optimizer = trainable.optimizer_arrays()
        self._epoch, self._running, self._ended = 0, False, False
        self._idle = False  # the workers have answered every command
        self._extra: dict[str, float] = {}
        self._of_states: list[str] | None = None  # logs that Keras computes here, from states; None: not known yet
        self._metrics: list[Array] = []  # as the workers have them in this epoch
        self._check_program: Callable[[], Any] | None = check_program  # it returns the check of the next step, or None

    # -- the job ------------------------------------------------------------------------------------------------------
    def start(self, feeder: "Feeder | None" = None) -> pb.Ready:
        """Set the job up. Raises WorkerError when a worker cannot, NeedsReplica when this `fit` cannot be divided."""
        self._feeder = feeder
        self._send(setup=pb.Setup(job=self._job.to_proto()))
        ready: pb.Ready = self._wait("ready")
        self._suspendable = ready.suspendable
        return ready

    def finish(self) -> None:
        """Finish the job and wait until the engine confirms it."""
        self._send(finish=pb.Finish())
        self._wait("finished")
        self._talk.close()

    def cancel(self) -> None:
        """Abandon the job; never raises. HFDT's ranks that wait for a command can train the next job."""
        if self._idle and self._engine == "hfdt" and not self._suspends:
            self._send(finish=pb.Finish())
        else:
            self._talk.cancel()

    # -- events of Keras's callback list (watched.py) -----------------------------------------------------------------
    def begun(self) -> None:
        """Let the checkpoints restore the callbacks' states."""
        if self._fit_checkpoints is not None:
            self._fit_checkpoints.begun()

    def epoch_begins(self, epoch: int) -> None:
        """Reset the state of the epoch and report its beginning."""
        self._epoch, self._running, self._ended, self._extra = epoch, False, False, {}
        self._metrics, sends, self._sends_kept = self._trainable.metric_arrays(), self._sends_kept, False
        if sends and all(array.dtype.kind in "biuf" and np.isfinite(array).all() for array in self._metrics):
            self._metrics = [np.zeros_like(array) for array in self._metrics]  # other ones go to the ranks
        self._reporters.epoch_begin(epoch)

    def step_done(self) -> None:
        """End the epoch if a callback has set `stop_training`."""
        if self._trainable.model.stop_training and self._running:
            self._send(end_epoch=pb.EndEpoch())
            self._end_epoch()

    def epoch_over(self, epoch: int, logs: Mapping[str, Any]) -> None:
        """Save a checkpoint and report the epoch's logs."""
        if self._fit_checkpoints is not None:
            self._fit_checkpoints.epoch_over(epoch, logs)
        self._reporters.epoch_end(epoch, numbers(logs))
        if self._fit_checkpoints is not None and self._preemption.asked is not None:
            self._fit_checkpoints.wait()
            self._preemption.check()

    def extra(self) -> dict[str, float]:
        """Return the engine's own logs of the epoch."""
        return self._extra

    # -- calls of Keras's loop ----------------------------------------------------------------------------------------
    def train_epoch(self) -> dict[str, Any]:
        """Train the whole epoch and return its logs."""
        self._preemption.check()
        begin = self._fit_checkpoints.begin(self._epoch, self._blobs) if self._fit_checkpoints is not None else None
        self._running = True
        changed = self._changed()
        if begin is not None:
            changed.ClearField("metrics")  # of the epoch's start, where none is resumed
        self._send(epoch=pb.Epoch(epoch=self._epoch, changed=changed, begin=begin))
        return self._end_epoch()

    def train_steps(self, count: int) -> dict[str, Any]:
        """Train up to `count` steps in lock step and return the logs of the last.

        Raises StopIteration when no step is left.
        """
        logs: dict[str, Any] | None = None
        for _ in range(count):
            if self._ended or (done := self._train_step()) is None:
                break
            logs = done
        if logs is None:
            raise StopIteration
        return logs

    def evaluate(self) -> dict[str, Any]:
        """Evaluate on the job's validation data and return the logs; the metric variables then hold the result."""
        self._send(evaluate=pb.Evaluate(epoch=self._epoch))
        done = self._wait("evaluated")
        self._load_metrics(done.metrics)
        return self._logs(done)

    def written(self) -> bool:
        """Return whether callbacks have written values that the workers do not have yet."""
        held = self._trainable.model_arrays(), self._trainable.optimizer_arrays()
        return not (same_bits(held[0], self._model) and same_bits(held[1], self._optimizer))

    def _train_step(self) -> dict[str, Any] | None:
        """Return the step's logs; None when the epoch had no step left."""
        if self._running:
            self._send(step=pb.Step(changed=self._changed()))
        else:
            self._send(epoch=pb.Epoch(epoch=self._epoch, changed=self._changed()))
            self._running = True
        done = self._wait("step_end", "epoch_end")
        if isinstance(done, pb.EpochEnd):
            self._take_epoch(done)
            return None
        self._load(done.state, done.metrics)
        if done.last:
            self._end_epoch()
        return self._logs(done)

    def _end_epoch(self) -> dict[str, Any]:
        while True:
            done = self._wait("epoch_end", "step_end")
            if isinstance(done, pb.EpochEnd):
                return self._take_epoch(done)
            self._load(done.state, done.metrics)

    def _take_epoch(self, done: pb.EpochEnd) -> dict[str, Any]:
        self._running, self._ended = False, True
        if self._orders is not None:
            self._orders.epoch_ended()
        self._extra = dict(done.extra)
        self._load(done.state, done.metrics)
        if self._feeder is not None:
            self._feeder.finish_epoch(done.epoch)
        return self._logs(done)

    def _logs(self, done: pb.StepEnd | pb.EpochEnd | pb.Evaluated) -> dict[str, Any]:
        """Return the logs. Results of metrics that are not one number are computed by Keras from their states."""
        flavor, model = self._trainable.flavor, self._trainable.model
        if flavor.name == "tf_keras" and not done.log_names:
            return numbers(model.get_metrics_result())  # of an epoch without a step
        logs = {name: done.logs[name] for name in done.log_names}
        if self._of_states is None:
            self._of_states = [k for k, v in self._results().items() if k not in logs and np.ndim(v)]
        results = self._results() if self._of_states else {}
        return {**logs, **{name: results[name] for name in self._of_states}}

    def _results(self) -> dict[str, Any]:
        """Return the metrics' results, which are the logs where the script has no step of its own."""
        flavor, model = self._trainable.flavor, self._trainable.model
        own = is_of_keras(flavor, model, "train_step", "compute_metrics")
        return dict(model.get_metrics_result()) if own else {}

    # -- variables ----------------------------------------------------------------------------------------------------
    def _load(self, state: job_pb2.State, metrics: Any) -> None:
        self._trainable.load(State.of(state), self._blobs)
        if state.model.id:
            self._model = self._blobs.get_arrays(state.model)
            self._blobs.drop(state.model)
        if state.optimizer.id:
            self._optimizer = self._blobs.get_arrays(state.optimizer)
            self._blobs.drop(state.optimizer)
        self._load_metrics(metrics)

    def _load_metrics(self, ref: Any) -> None:
        if ref.id:
            self._metrics = self._blobs.get_arrays(ref)
            self._trainable.write_metrics(self._metrics)
            self._blobs.drop(ref)

    def _changed(self) -> job_pb2.State:
        """Return the groups that callbacks wrote to since the last load, with the arrays that differ.

        Others are workers' own: servers of overlapped epochs are ahead of that load, ranks differ within a round.

        Raises NeedsReplica if a callback changed an object that the next step reads, UserError if it read such rows.
        """
        if self._orders is not None:
            self._orders.epoch_begins()
        self._check_program = self._check_program() if self._check_program is not None else None
        changed = job_pb2.State()
        model, optimizer = self._trainable.model_arrays(), self._trainable.optimizer_arrays()
        if not same_bits(model, self._model):
            changed.model.CopyFrom(self._blobs.put_arrays(left_out(model, self._model)))
            self._model = model
        if not same_bits(optimizer, self._optimizer):
            changed.optimizer.CopyFrom(self._blobs.put_arrays(left_out(optimizer, self._optimizer)))
            self._optimizer = optimizer
        metrics = self._trainable.metric_arrays()
        if not same_bits(metrics, self._metrics):
            self._metrics = metrics
            self._of_states = list(self._results())  # an NFDT worker's logs are of its own states
            changed.metrics.CopyFrom(self._blobs.put_arrays(metrics))
        return changed

    # -- messages -----------------------------------------------------------------------------------------------------
    def _send(self, **kind: Any) -> None:
        self._idle = False
        self._talk.send(pb.Command(job=self._job.id, **kind))

    def _wait(self, *kinds: str) -> Any:
        """Return the next event of one of `kinds`; events before it are dispatched."""
        while True:
            for event in self._events:
                self._reporters.event(event)
                kind = event.WhichOneof("kind")
                if kind in kinds:
                    self._idle = kind in ("ready", "epoch_end", "evaluated")
                    return getattr(event, kind)
                self._pass_on(kind, event)
            raise_held()  # the events may have ended because of a signal
            if self._preemption.asked is None or self._suspends:
                raise WorkerError("the engine closed the connection before the job ended")
            self._suspend()
            self._events = self._talk.events()

    def _suspend(self) -> None:
        """Ask for a commit within the epoch where one can be taken."""
        self._suspends, now = True, self._running and self._suspendable
        what, number = "after the next steps" if now else "at this epoch's end", self._preemption.asked
        name = number.name if number is not None else ""
        self._reporters.note(f"{name}: the run is saved {what} and ends, in {self._preemption.grace_s:g} s at most")
        if now:
            self._send(suspend=pb.Suspend())

    def _pass_on(self, kind: str | None, event: pb.Event) -> None:
        if kind == "output":
            sys.stdout.write(event.output.text)
        elif kind == "commit":
            self._take_commit(event.commit)
        elif kind == "note":
            self._reporters.note(event.note.text)
        elif kind == "failed":
            raise failure_of(event.failed)
        elif kind == "feed_wanted" and self._feeder is not None:
            self._feeder.wanted(event.feed_wanted)

    def _take_commit(self, commit: pb.Commit) -> None:
        refs = [commit.state.model, commit.state.optimizer, commit.metrics, commit.rank_metrics]
        groups = [self._blobs.get_arrays(ref) for ref in refs if ref.id]
        for ref in refs:
            self._blobs.drop(ref)
        if self._fit_checkpoints is not None:
            self._fit_checkpoints.committed(commit, groups)
            if self._suspends:
                self._fit_checkpoints.wait()
                self._preemption.check()
