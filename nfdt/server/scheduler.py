"""The parameter server's scheduler: events in, instructions out. No I/O, no clock, no TensorFlow.

A worker asks (`ask`, or `push`, which also asks for the next weights), receives weights and batches (Send), computes,
and pushes. It is in one of three states: asking, computing, or between epochs (informed of the end, not asking
again yet). The gRPC service (service.py) and the simulated clock (nfdt/simulator/) drive this object.
"""

from collections.abc import Callable, Collection

from nfdt.server import EpochDone, Instruction, NotFinite, Send, StepDone
from nfdt.server.algorithm_state import AlgorithmState
from nfdt.server.batch_dispatcher import NOT_BEGUN, BatchDispatcher, Begun, Epoch
from nfdt.transport import EpochOver, Release, WorkerGradient

LOOKAHEAD = 2  # pushes whose batches a worker has: the one it computes and the one it prefetches


class Scheduler:
    """Decides which batches a worker gets, who waits and when an epoch ends; shard 0's decisions hold for all shards.

    Attributes:
        state: The algorithm's state.
        steps: Batches in an epoch; None while unknown, `end_of_data` then ends the epoch.
        lock_step: Whether each push waits for the client's callbacks.
        on_nan: Treatment of a push with NaN or infinity: "apply", "skip" or "stop" (an error).
    """

    def __init__(
        self,
        core: AlgorithmState,
        steps: int | None,
        *,
        lock_step: bool = False,
        on_nan: str = "apply",
        absent: Collection[int] = (),
    ) -> None:
        self.on_nan = on_nan
        self.state = core
        self.steps = steps
        self.lock_step = lock_step
        self.epoch: Epoch | None = None
        self.ended = -1  # the last epoch that has ended
        self.finished = False
        self.absent = set(absent)  # workers that have not started: each joins when it first asks
        for worker in self.absent:
            core.leave(worker)
        self._asking: dict[int, None] = {}  # an ordered set, served in this order
        self._missed: dict[int, int] = {}  # by worker: the ended epoch of which it must be informed
        self._informed: dict[int, int] = {}  # by worker: the ended epoch of which it was informed, until it asks
        self._computing: set[int] = set()
        self._per_push = core.rule.batches_per_push
        self._held: list[tuple[int, int, WorkerGradient]] = []  # lock step: pushes that wait for the client
        self._uninformed: list[StepDone] = []  # lock step: steps of an applied push that are not reported yet
        self._gate_open = True
        self._out: list[Instruction] = []

    # -- events ----------------------------------------------------------------------------------------------

    def start_epoch(self, number: int, begun: Begun = NOT_BEGUN, *, early: bool = False) -> list[Instruction]:
        """Start an epoch, or what remains of a suspended one. An `early` one ends after a second call only.

        Every worker first gets the batches of one push, because a barrier needs all of them.
        """
        if self.epoch is not None and self.epoch.number == number:
            self.epoch.let_end()
            return self._settle()
        dispatcher = BatchDispatcher.of(self.steps, begun.remaining)
        self.epoch = Epoch(number, dispatcher, samples=begun.samples, skipped=begun.skipped, early=early)
        self._gate_open = True
        for _ in range(self._per_push):
            for worker in self.state.worker_states:
                self.epoch.dispatcher.assign(worker)
        return self._settle()

    def ask(self, worker: int) -> list[Instruction]:
        """Handle a worker's request for weights and a batch. A pending end of an epoch is sent first."""
        if worker in self.absent:
            self.absent.remove(worker)
            self.state.join(worker)
        if worker not in self.state.worker_states:
            return []
        self._computing.discard(worker)
        self._informed.pop(worker, None)
        if worker in self._missed and not self.finished:
            self._informed[worker] = self._missed.pop(worker)
            return [EpochOver(worker, self._informed[worker])]
        self._asking[worker] = None
        return self._settle()

    def push(self, worker: int, push: int, gradient: WorkerGradient) -> list[Instruction]:
        """Handle a gradient and the request for the next weights. The push of a worker that has left is ignored.

        Args:
            worker: Number of the worker.
            push: Rises per worker; a retry repeats it.
            gradient: The gradient.
        """
        if worker not in self.state.worker_states:
            return []
        if worker in self._missed:  # a retry: the first attempt ended the epoch
            return self.ask(worker)
        if self._gate_open:
            self._take(worker, push, gradient)
        else:
            self._held.append((worker, push, gradient))
        return self._settle()

    def step(self) -> list[Instruction]:
        """Lock step: continue after the client's callbacks for the last push."""
        self._gate_open = True
        if self._uninformed:
            self._inform()
        while self._held and self._gate_open:  # a push that is not finite leaves it open
            self._take(*self._held.pop(0))
        return self._settle()

    def stop_epoch(self) -> list[Instruction]:
        """End the epoch at the client's request: gradients in progress are not applied."""
        self._gate_open = True
        if self.epoch:
            self.epoch.stop()
        self._uninformed.clear()
        while self._held:
            self._take(*self._held.pop(0))
        return self._settle()

    def suspend(self) -> list[Instruction]:
        """End the epoch after the pushes that are being computed, because the run is preempted."""
        if self.epoch is not None and not self.epoch.stopping:
            self.epoch.dispatcher.suspend(self._computing, self._per_push)
        return self._settle()

    def end_of_data(self, worker: int, batch: int) -> list[Instruction]:
        """Handle a missing batch: the source ends before `batch`, which `worker` was to compute; it asks again."""
        if self.epoch and worker not in self._missed:  # otherwise a retry: the first report ended the epoch
            self.epoch.dispatcher.end_at(batch)
        return self.ask(worker)

    def leave(self, *workers: int) -> list[Instruction]:
        """Remove workers, all at once; other workers get their batches."""
        self.absent.difference_update(workers)
        gone = [worker for worker in workers if worker in self.state.worker_states]
        for worker in gone:
            self._asking.pop(worker, None)
            self._computing.discard(worker)
            self._missed.pop(worker, None)
            self._informed.pop(worker, None)
            self._held = [pushed for pushed in self._held if pushed[0] != worker]
            self.state.leave(worker)
            if self.epoch:
                self.epoch.dispatcher.take_back(worker)
        return self._settle() if gone else []

    def join(self, worker: int) -> list[Instruction]:
        """Add `worker`, perhaps as a replacement. It has not asked yet."""
        self.state.join(worker)
        return self._settle()

    def reconnect(self, worker: int, ends_received: int) -> None:
        """Handle a worker's new session after a broken one: the worker counts as computing until it asks.

        `ends_received` is the number of epoch ends that the worker has received; a lost one is sent again.
        """
        if worker in self._asking:
            del self._asking[worker]
            self._computing.add(worker)
        informed = self._informed.pop(worker, -1)
        if informed >= ends_received:
            self._missed[worker] = informed

    def saved(self) -> tuple[Epoch | None, dict[int, int]]:
        """Return the epoch, and by worker the epoch end that it must still receive: all workers if no epoch runs."""
        return self.epoch, self._missed if self.epoch else dict.fromkeys(self.state.worker_states, self.ended)

    def expect(self, steps: int | None) -> None:
        """Set the number of batches in the epochs to come; None: unknown."""
        self.steps = steps

    def restore(self, epoch: Epoch | None, missed: dict[int, int], ended: int) -> None:
        """Continue from a snapshot. All batches are assigned anew: the sessions that had them are lost."""
        self.epoch, self._missed, self.ended = epoch, missed, ended
        if epoch:
            epoch.greeted.clear()
            for worker in self.state.worker_states:
                epoch.dispatcher.take_back(worker)

    def finish(self) -> list[Instruction]:
        """End the job: release every worker that asks."""
        self.finished = True
        self.epoch = None
        return self._settle()

    # -- decisions -------------------------------------------------------------------------------------------

    def _take(self, worker: int, push: int, gradient: WorkerGradient) -> None:
        self._computing.discard(worker)
        self._asking[worker] = None
        epoch = self.epoch
        if epoch is None or epoch.stopping:
            return
        if not set(gradient.batches) <= set(epoch.dispatcher.assigned(worker)):
            return  # a retry, or a gradient from before a restoration: the batch was assigned anew
        if not gradient.finite and self.on_nan != "apply":
            self._refuse(worker, push, gradient, epoch)
            return
        tau = self.state.push(worker, push, gradient)
        if tau is None:
            return
        self._finish(worker, gradient, epoch)
        epoch.count(gradient.samples, tau)
        if self.lock_step:
            done, count = epoch.dispatcher.done, len(gradient.batches)
            last = done if epoch.dispatcher.complete else -1
            steps = range(done - count + 1, done + 1)
            self._uninformed = [StepDone(worker, n, n == last, gradient, n == steps[0]) for n in steps]
            self._inform()

    def _inform(self) -> None:
        ended = self._uninformed.pop(0)
        self._gate_open = ended.last  # the client does not answer the last step
        self._out.append(ended)

    def _refuse(self, worker: int, push: int, gradient: WorkerGradient, epoch: Epoch) -> None:
        """Raise NotFinite, or count the batches as done without applying them."""
        if self.on_nan == "stop":
            raise NotFinite(worker, push, gradient.batches, epoch.number)
        if self.state.skip(worker, push):
            self._finish(worker, gradient, epoch)
            epoch.skip(len(gradient.batches))

    def _finish(self, worker: int, gradient: WorkerGradient, epoch: Epoch) -> None:
        for batch in gradient.batches:
            epoch.dispatcher.finish(worker, batch)

    def _settle(self) -> list[Instruction]:
        if self.finished:
            self._reply_all(Release)
        elif self.epoch:
            self._serve(self.epoch)
            idle = self._asking and not self._computing and not self._held and self._gate_open
            if idle and self.epoch.dispatcher.all_with(self._asking):  # else another one is about to ask
                self._move_on(self.epoch)
        out, self._out = self._out, []
        return out

    def _serve(self, epoch: Epoch) -> None:
        if epoch.stopping or not self._gate_open:
            return
        for worker in self._asking:
            if epoch.dispatcher.exhausted:
                break
            for _ in range(self._per_push - len(epoch.dispatcher.assigned(worker))):
                if epoch.dispatcher.assign(worker) is None:
                    epoch.dispatcher.reassign(worker, self._per_push)
        for worker in epoch.dispatcher.busy(self._asking):
            self._send(epoch, worker)

    def _send(self, epoch: Epoch, worker: int) -> None:
        sent = self.state.pull(worker)
        if sent is None:
            return
        while (
            len(epoch.dispatcher.assigned(worker)) < LOOKAHEAD * self._per_push
            and epoch.dispatcher.assign(worker) is not None
        ):
            pass
        del self._asking[worker]
        self._computing.add(worker)
        first = worker not in epoch.greeted
        epoch.greeted.add(worker)
        batches, count, pull = epoch.dispatcher.assigned(worker), self._per_push, self.state.pulls
        staleness = self.state.worker_states[worker].staleness
        self._out.append(Send(worker, epoch.number, batches[:count], sent, first, batches[count:], pull, staleness))

    def _move_on(self, epoch: Epoch) -> None:
        """End the epoch, or flush the algorithm if it makes all workers wait: no worker computes."""
        if epoch.dispatcher.complete and not epoch.early:
            self._end(epoch)
        elif epoch.dispatcher.busy(self._asking):
            self.state.flush()
            self._serve(epoch)
            if not self._computing:
                raise RuntimeError(
                    "an algorithm must let a worker continue after flush(). Received: None for every pull"
                )

    def _end(self, epoch: Epoch) -> None:
        self.state.flush()
        self.ended = epoch.number
        present = tuple(self.state.worker_states)
        self._missed.update({worker: epoch.number for worker in present if worker not in self._asking})
        self._informed.update(dict.fromkeys(self._asking, epoch.number))
        self._reply_all(lambda worker: EpochOver(worker, epoch.number))
        counts = epoch.dispatcher.done - epoch.skipped, epoch.samples, epoch.staleness, present, epoch.skipped
        self._out.append(EpochDone(epoch.number, *counts, epoch.dispatcher.remaining))
        self.epoch = None

    def _reply_all(self, reply: Callable[[int], Instruction]) -> None:
        self._out.extend(map(reply, self._asking))
        self._asking.clear()
