"""Checkpoints of each `fit` of a run, saved at the ends of epochs, and resumption from them (files: fdt/rundir.py).

A resumed script runs again from its first line. A `fit` that was finished is not trained again: its model receives its
weights, its callbacks their states, the script its History. An interrupted one resumes after its last saved epoch, or
from a later commit within an epoch.
"""

from collections.abc import Callable, Mapping, Sequence
from threading import Thread
from typing import TYPE_CHECKING, Any

from client_shim.call import FitCall
from client_shim.resume import callback_state, plain, randomness
from client_shim.resume.saved import Saved, differs, options_of_rows, short, signature
from fdt.blobs import Blobs
from fdt.errors import CaptureError
from fdt.job import Data, FeedData
from fdt.rpc.job_pb2 import State
from fdt.rpc.session_pb2 import Commit, Remaining
from fdt.rundir import MALFORMED
from fdt.trainable import Trainable, change
from fdt.typing import Array

if TYPE_CHECKING:
    from client_shim.feed import Feeder
    from client_shim.state import ScriptRun

_REMEDY = "to train from the beginning, give --run-dir a new directory"


class FitCheckpoints:
    """The checkpoints of one `fit`, the `number`th of the run.

    Attributes:
        saved: The checkpoint that an earlier process left; None where there is none.
        seed: The seed of the `fit`: the saved one where it is resumed.
        logs: Of the last epoch that was trained.
    """

    def __init__(self, run: "ScriptRun", call: FitCall, data: Data, trainable: Trainable) -> None:
        assert run.directory is not None
        self._directory, self.number, self._call, self._note = run.directory, run.fits, call, run.reporters.note
        self._trainable, self._preemption = trainable, run.preemption
        self._commits = run.settings.options.get("commit_every", "0") != "0"
        self._options = options_of_rows(run.engine, run.settings.options)
        self._signature: dict[str, Any] = {}
        self._drawn_from: Sequence[str] = randomness.GENERATORS if isinstance(data, FeedData) else ()
        self._callbacks = callback_state.own(call.callbacks)
        self._sums = [plain.sums(callback) for callback in self._callbacks]
        self._appending: list[tuple[Any, bool, bool]] = []  # CSVLoggers, the script's append and append_header
        self._writing: Thread | None = None
        self._warned = False
        self._midst: Saved | None = None  # a commit within the first epoch to train
        self.seed = 0
        self.saved: Saved | None = None
        self.logs: Mapping[str, Any] = {}
        self._over: int | None = None  # epochs that are trained; None: none by this process

    def look(self, data: Data, blobs: Any, seed: int) -> None:
        """Find and load what was saved. Raises CaptureError if the script's `fit` differs from the saved one."""
        self.seed = seed
        self._signature = signature(self._call, data, self._trainable, blobs)
        found, warnings = self._directory.load(self.number, Saved.check) if self._directory.resumed else (None, [])
        for line in warnings:
            self._note(line)
        if found is None:
            return
        self.saved = Saved(*found)
        self._is_saved(self.saved.epoch, done=self.saved.done)
        self._check(self.saved.header["signature"])
        self.seed, self.logs = int(self.saved.header["seed"]), self.saved.logs
        try:
            self.saved.load(self._trainable)
        except MALFORMED as error:
            raise CaptureError(
                f"fit {self.number} has a checkpoint whose arrays are not the model's: {error}; {_REMEDY}"
            ) from None
        self._find_step()

    def _find_step(self) -> None:
        found, warnings = self._directory.load_step(self.number, Saved.check_step)
        for line in warnings:
            self._note(line)
        if found is None or int(found[0]["epoch"]) != self.first:
            return
        before = found[0].get("options", self._options)
        other = [name for name, now in self._options.items() if before.get(name) != now]
        if other:
            option = "algorithm" if other[0] == "rule" else other[0].replace("_", "-")
            at = f"step {found[0]['step']:,} of epoch {self.first + 1} was saved with another --{option}"
            self._note(f"{at}, under which steps have other rows: this epoch is trained from its start")
            return
        self._midst = Saved(*found)
        self._is_saved(self.first, step=int(found[0]["step"]))

    def _is_saved(self, epoch: int, *, step: int = 0, done: bool = False) -> None:
        """Record how far the run is saved: `epoch` epochs and `step` steps of the next; `done`: the whole `fit`."""
        how = f"step {step:,} of epoch {epoch + 1}" if step else f"the end of epoch {epoch}" if epoch else "the start"
        self._preemption.saved = f"the end of fit {self.number}" if done else f"{how} of fit {self.number}"

    @property
    def first(self) -> int:
        """The first epoch to train."""
        return self.saved.epoch if self.saved else self._call.arguments["initial_epoch"] or 0

    @property
    def last(self) -> int:
        """The epoch before which training ends: `first` if a callback had stopped the saved `fit`."""
        epochs = int(self._call.arguments["epochs"])
        return self.first if self.saved is not None and self.saved.stopped else epochs

    # -- resumption ---------------------------------------------------------------------------------------------------
    def replay(self) -> Any:
        """Restore a finished `fit` with its callbacks and random numbers and return its History; no hook is called."""
        assert self.saved is not None
        given = [callback for callback in self._call.callbacks if callback not in self._callbacks]
        history = given[0] if given else self._call.flavor.keras.callbacks.History()
        for callback in [*self._callbacks, history]:
            callback.set_model(self._call.model)
            callback.set_params(self._params())
        self._restore(history)
        self._call.model.history = history
        self._note(f"fit {self.number} has ended before and is not trained again")
        return history

    def _params(self) -> Any:
        """Return what callbacks had as `params`; the call's arguments where an older checkpoint has none."""
        if self.saved is not None and "params" in self.saved.header:
            return self.saved.plain("params")
        given = self._call.arguments
        return {"verbose": given["verbose"], "epochs": given["epochs"], "steps": self._call.steps_per_epoch or None}

    def prepare(self, feeder: "Feeder | None") -> None:
        """Prepare files that callbacks continue to write, before their first hook would start them anew.

        `feeder` draws the batches in this process, those of finished epochs too.
        """
        if feeder is not None and self.first > (self._call.arguments["initial_epoch"] or 0):
            self._drawn_from = feeder.generators_used()
        for callback, encoded in self._saved_of_callbacks():
            if callback_state.is_csv_logger(callback) and hasattr(callback, "append"):
                self._appending.append(callback_state.continue_csv(callback, encoded))

    def expect_commits(self) -> None:
        """Expect commits within epochs: the state before the first epoch is saved, too."""
        self._commits = True

    def begun(self) -> None:
        """Restore the callbacks' states after their first hooks, and undo what the hooks wrote into the model."""
        self._sums = [
            callback_state.both(sums, plain.sums(each)) for each, sums in zip(self._callbacks, self._sums, strict=True)
        ]
        for logger, append, _ in self._appending:
            logger.append = append
        if self.saved is None:
            if self._commits:
                self._save(self.first, done=False)  # the base of a resumption within the epoch
            return
        self._restore(self._call.model.history, self._drawn_from)
        self.saved.load(self._trainable)
        if getattr(self._call.model, "_initial_epoch", None) is not None:  # Keras's BackupAndRestore
            self._call.model._initial_epoch = self.first
        where = f"step {self._midst.header['step']:,} of epoch" if self._midst else "the end of epoch"
        epoch = self.first + 1 if self._midst else self.first
        self._note(f"fit {self.number} continues from {where} {epoch} of {self._call.arguments['epochs']}")

    def _restore(self, history: Any, drawn_from: Sequence[str] = ()) -> None:
        """Restore History, callbacks and random generators, but for those that drawing the batches again has set."""
        assert self.saved is not None
        history.history, history.epoch = self.saved.plain("history"), self.saved.plain("epochs")
        for callback, encoded in self._saved_of_callbacks():
            logger = callback_state.is_csv_logger(callback)
            plain.put_back(callback, callback_state.without_file(encoded) if logger else encoded, self.saved.arrays)
        self._call.model.stop_training = self.saved.stopped
        randomness.restore({n: state for n, state in self.saved.plain("random").items() if n not in drawn_from})
        for line in self.saved.header["left_out"]:
            self._note(line)

    def _saved_of_callbacks(self) -> list[tuple[Any, dict[str, Any]]]:
        """Return the script's callbacks that still exist, with the saved state of each."""
        saved = self.saved.header["callbacks"] if self.saved is not None else []
        pairs = zip(self._callbacks, saved, strict=False)
        return [(callback, encoded) for callback, (name, encoded) in pairs if type(callback).__name__ == name]

    def _check(self, before: dict[str, Any]) -> None:
        for name, now in self._signature.items():
            if differs(before.get(name), now):
                raise CaptureError(
                    f"fit {self.number} must be the same with --resume as before: {name} was "
                    f"{short(before.get(name))}. Received: {short(now)}; {_REMEDY}"
                )

    def begin(self, epoch: int, blobs: Blobs) -> Commit | None:
        """Return the commit from which the ranks resume `epoch`; None where they begin at its start."""
        midst, self._midst = self._midst, None
        if midst is None or epoch != self.first:
            return None
        model, optimizer, metrics, *by_rank = midst.groups()
        state = State(model=blobs.put_arrays(model), optimizer=blobs.put_arrays(optimizer))
        header, remaining = midst.header, midst.header.get("remaining")
        commit = Commit(
            epoch=epoch,
            step=header["step"],
            samples=header["samples"],
            state=state,
            skipped=header.get("skipped", 0),
            rank_metrics=blobs.put_arrays(by_rank[0]) if by_rank else None,
        )
        if remaining is not None:  # NFDT: workers that began with the initial values are to be added
            commit.remaining.CopyFrom(Remaining(next=remaining[0], returned=remaining[1:]))
            metrics = [change(now, start) for now, start in zip(metrics, self._trainable.metric_arrays(), strict=True)]
        commit.metrics.CopyFrom(blobs.put_arrays(metrics))
        return commit

    # -- saving -------------------------------------------------------------------------------------------------------
    def epoch_over(self, epoch: int, logs: Mapping[str, Any]) -> None:
        """Save, while the next epoch trains."""
        self._over, self.logs = epoch + 1, logs
        self._save(self._over, done=False)

    def committed(self, commit: Commit, groups: Sequence[Sequence[Array]]) -> None:
        """Save a commit within an epoch, as the ranks have it; the callbacks' states are those of the epoch's start."""
        position = {name: int(getattr(commit, name)) for name in ("epoch", "step", "samples", "skipped")}
        header: dict[str, Any] = {**position, "options": self._options, "counts": [len(group) for group in groups]}
        if commit.HasField("remaining"):
            header["remaining"] = [commit.remaining.next, *commit.remaining.returned]
        arrays = [array for group in groups for array in group]

        def write() -> None:
            self._directory.save_step(self.number, header, arrays)
            self._is_saved(commit.epoch, step=commit.step)

        self._write(write)

    def finished(self) -> None:
        """Save the finished `fit` and wait until it is written."""
        self._save(self.first if self._over is None else self._over, done=True)
        self.wait()

    def wait(self) -> None:
        """Wait until the last checkpoint is written."""
        if self._writing is not None:
            self._writing.join()

    def _save(self, epoch: int, *, done: bool) -> None:
        for logger, _, header_first in self._appending:
            if done or logger.writer is not None:  # it has decided about its file's header
                logger.append_header = header_first
        header, arrays = self._taken(epoch, done)

        def write() -> None:
            if done:
                self._directory.finish(self.number, header, arrays)
            else:
                self._directory.save(self.number, epoch, header, arrays)
            self._is_saved(epoch, done=done)

        self._write(write)

    def _write(self, write: Callable[[], None]) -> None:
        """Write in a thread, one checkpoint after the other."""

        def guarded() -> None:
            try:
                write()
            except OSError as error:
                self._warn(error)

        self.wait()
        self._writing = Thread(target=guarded, name="checkpoint")
        self._writing.start()

    def _warn(self, error: OSError) -> None:
        """Note a failed write once; training continues, because it is worth more than its checkpoint."""
        if not self._warned:
            self._warned = True
            self._note(
                f"a checkpoint cannot be written: {error}. Training continues; --resume would start from an older one"
            )

    def _taken(self, epoch: int, done: bool) -> tuple[dict[str, Any], list[Array]]:
        groups = (self._trainable.model_arrays(), self._trainable.optimizer_arrays(), self._trainable.metric_arrays())
        arrays = [array for group in groups for array in group]
        history, strange = callback_state.numbers(self._call.model.history.history)
        header = {
            "epoch": epoch,
            "done": done,
            "stopped": bool(self._call.model.stop_training),
            "signature": self._signature,
            "seed": self.seed,
            "counts": [len(group) for group in groups],
            "history": plain.encode(history, arrays),
            "logs": plain.encode({str(name): callback_state.number(each) for name, each in self.logs.items()}, arrays),
            "params": plain.encode(dict(self._call.model.history.params), arrays),
            "epochs": plain.encode(list(self._call.model.history.epoch), arrays),
            "random": plain.encode(randomness.states(), arrays),
        }
        header["callbacks"], left_out = callback_state.kept(self._callbacks, self._sums, arrays)
        header["left_out"] = left_out + strange
        return header, arrays
