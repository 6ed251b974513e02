"""The applier of a real server: the algorithm's arithmetic and the captured Keras optimizer in one compiled function.

There is one function per distinct arithmetic (nfdt/tree.py), for all workers: a worker's state is passed in and
out as tensors. The function also returns the variables' values after an update. At the next update TensorFlow allocates
a new buffer for a variable that still shares memory with such a tensor. So these tensors are immutable snapshots, at
the cost of one copy of the weights per update, which delay compensation needs anyway.

The server makes no other copy per push and pull: it reads gradients in the receive buffer.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import tensorflow as tf

from fdt.errors import UserError
from fdt.keras.variables import tensor_variable
from fdt.ops import finite_part, flat_call
from fdt.typing import Tensor
from nfdt.algorithm import AlgorithmUpdate, AsyncAlgorithm, Hyper, Push, State
from nfdt.model.settings import refuse_counting_rate
from nfdt.model.variables import OwnedVariables, clipped, current_rate, momentum_of
from nfdt.transport import WorkerGradient
from nfdt.transport.buffers import Sent
from nfdt.tree import TracedProgram, evaluate, lower

UNDECLARED = (
    "an algorithm's own_momentum (nfdt/algorithm.py) must say whether its updates have momentum 'algorithm', because "
    "gradients are then clipped before it receives them. Received: an update of momentum {!r}, against own_momentum"
)
SCALARS = ("tau", "samples", "eta", "mu")  # nodes 0 to 3 of every push


def _alike(function: Callable[[Tensor, Tensor], Tensor]) -> Callable[[Tensor, Tensor], Tensor]:
    """Wrap `function`: a number or a float32 scalar (tau, mu, ...) is converted to the type of the other operand.

    These scalars and results of them alone are float32 whatever the type of the weights is. So where both operands are
    0-d and their types differ, the float32 one is such a scalar, and the other one is of a 0-d weight.
    """

    def call(a: Tensor, b: Tensor) -> Tensor:
        if not (tf.is_tensor(a) and tf.is_tensor(b)):
            kind = (a if tf.is_tensor(a) else b).dtype
            a, b = tf.convert_to_tensor(a, kind), tf.convert_to_tensor(b, kind)
        elif a.dtype != b.dtype:
            first = a.shape.rank == 0 and (b.shape.rank != 0 or a.dtype == tf.float32)
            a, b = (tf.cast(a, b.dtype), b) if first else (a, tf.cast(b, a.dtype))
        return function(a, b)

    return call


# TensorFlow's functions for the operations of a traced algorithm (nfdt/tree.py), by the operations' names.
CALLS: dict[str, Callable[..., Tensor]] = {
    "add": _alike(lambda a, b: a + b),
    "sub": _alike(lambda a, b: a - b),
    "mul": _alike(lambda a, b: a * b),
    "div": _alike(lambda a, b: a / b),
    "pow": _alike(lambda a, b: a**b),
    "abs": tf.abs,
    "total": tf.reduce_sum,
    "minimum": _alike(tf.minimum),
    "maximum": _alike(tf.maximum),
    "finite_or": lambda array, other: tf.where(tf.math.is_finite(array), array, other),
}


@dataclass(frozen=True)
class _Program:
    """A traced call of the algorithm, ready to be compiled."""

    tape: TracedProgram
    outputs: list[int]
    update: list[int] | None = None
    fresh: list[int] | None = None  # if given: the algorithm's momentum
    lr_scale: Any = 1.0  # a number, or (True, node)
    steps: int | None = None  # if given: the captured optimizer only counts
    absent: frozenset[int] = frozenset()  # positions of variables that the update leaves alone
    changed: tuple[int, ...] = ()
    first: int = 0  # number of leading inputs that are scalars; the compiled function computes them
    volatile: range = range(0)  # inputs in a receive buffer; they are copied if they are outputs
    clips: bool = False  # whether these inputs are clipped before the algorithm's arithmetic

    @property
    def key(self) -> tuple[Any, ...]:
        update, fresh = (None if nodes is None else tuple(nodes) for nodes in (self.update, self.fresh))
        how = (self.lr_scale, self.steps, self.absent, self.changed, self.first, self.clips)
        return self.tape.key, tuple(self.outputs), update, fresh, *how

    @property
    def computed(self) -> list[int]:
        """Outputs that the compiled function must compute or copy."""
        kept = range(self.first, len(self.tape.inputs))
        return [n for n in self.outputs if n not in kept or n in self.volatile]

    @property
    def used(self) -> list[int]:
        """Inputs that the compiled function reads; the first stands for the scalars."""
        operands = {n for _, *those in self.tape.operations for is_node, n in those if is_node}
        seen = operands | set(self.computed) | set(self.update or ()) | set(self.fresh or ())
        seen |= set(self.volatile if self.clips else ())  # the global norm is that of all gradients
        counts = [0] if self.first else []
        return [*counts, *(n for n in range(self.first, len(self.tape.inputs)) if n in seen)]


def _move(variable: tf.Variable, decay: Tensor, change: Tensor) -> None:
    """Add `change` to `decay` times the variable; a whole number is a sum, a flag is what the last push says."""
    if variable.dtype.is_bool:
        variable.assign(change)
    elif variable.dtype.is_floating:
        variable.assign(tf.cast(decay, variable.dtype) * finite_part(variable.read_value()) + change)
    else:
        variable.assign_add(change)


@dataclass
class ModelApplier:
    """Applies an algorithm to one server's part of a captured model's variables.

    Attributes:
        part: The variables, and the captured optimizer.
        optimizer: The algorithm's own optimizer, built for `part.trainable`; None: the captured one applies updates.
        unused: Positions of the trainable variables for which no push has had a gradient; None: no push yet.
    """

    part: OwnedVariables
    optimizer: Any = None
    unused: frozenset[int] | None = None
    _compiled: dict[Any, tuple[Callable[[list[Tensor]], Any], list[int]]] = field(default_factory=dict)
    _changed: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        self._updated = self.part if self.optimizer is None else replace(self.part, optimizer=self.optimizer)
        refuse_counting_rate(self._updated.optimizer)
        self._zeros: dict[int, Tensor] = {}
        self._blank = tf.constant(0.0)  # placeholder for scalars that the compiled function reads itself
        self.refresh()

    def refresh(self) -> None:
        """Read the variables again after another program has written them."""
        self._keep(*self._read())
        self._before = self.params

    def restore(self, unused: frozenset[int] | None) -> None:
        """Continue from a snapshot, whose variables are written."""
        self.unused = unused
        self.refresh()

    def init(self, rule: AsyncAlgorithm, workers: int) -> tuple[State, State]:
        tape = TracedProgram()
        result = rule.init(tape.lift(list(self.params)), workers)
        state: tuple[State, State] = lower(result, self._run(_Program(tape, tape.outputs(result))))
        return state

    def pull(self, rule: AsyncAlgorithm, shared: State, mine: State, worker: int) -> tuple[Sent | None, State, State]:
        tape = TracedProgram()
        eta, mu = tape.lift([self._blank, self._blank])
        shared, mine, params = tape.lift([shared, mine, list(self.params)])
        result = rule.pull(shared, mine, params, Hyper(worker, eta, mu))
        sent, shared, mine = lower(result, self._run(_Program(tape, tape.outputs(result), first=2)))
        return (None if sent is None else self._sent(sent)), shared, mine

    def push(
        self, rule: AsyncAlgorithm, shared: State, mine: State, worker: int, gradient: WorkerGradient, tau: int
    ) -> tuple[bool, State, State]:
        tape, clips = TracedProgram(), rule.own_momentum is not None and rule.own_momentum(shared)
        counts = tf.constant([tau, gradient.samples], tf.float32)
        scalars = tape.lift([counts] * len(SCALARS))
        shared, mine, params, before = tape.lift([shared, mine, list(self.params), list(self._before)])
        grad = tape.lift(self._whole(gradient))
        facts = {"before": before, "seconds": gradient.seconds, "batches": len(gradient.batches)}
        push = Push(worker, grad, **facts, **dict(zip(SCALARS, scalars, strict=True)))
        update, *kept = rule.push(shared, mine, params, push)
        if update is not None and (update.momentum == "algorithm") != clips:
            raise UserError(UNDECLARED.format(update.momentum))
        volatile = range(grad[0].node, grad[-1].node + 1) if grad else range(0)  # a shard may have no trainable
        absent = frozenset(i for i, tensor in enumerate(gradient.gradient) if tensor is None)
        self.unused = absent if self.unused is None else self.unused & absent
        if update is not None and (rule.holds or rule.waits):  # other pushes of the update may have it
            absent = self.unused | {i for i in absent if update.gradient[i].node == grad[i].node}
        program = self._program(tape, update, kept, absent, gradient.changed)
        program = replace(program, first=len(SCALARS), volatile=volatile, clips=bool(volatile) and clips)
        changes = [*gradient.changes, tf.constant(gradient.decays, tf.float32)] if gradient.changes else ()
        shared, mine = lower(kept, self._run(program, changes))
        return update is not None, shared, mine

    def flush(self, rule: AsyncAlgorithm, shared: State) -> tuple[bool, State]:
        tape = TracedProgram()
        state, params = tape.lift([shared, list(self.params)])
        update, kept = rule.flush(state, params)
        program = self._program(tape, update, kept, self.unused or frozenset())
        return update is not None, lower(kept, self._run(program))

    # -- traced to compiled --------------------------------------------------------------------------------

    def _program(
        self,
        tape: TracedProgram,
        update: AlgorithmUpdate | None,
        kept: State,
        absent: frozenset[int],
        changed: Sequence[int] = (),
    ) -> _Program:
        outputs, changed = tape.outputs(kept), tuple(changed)
        if update is None:
            return _Program(tape, outputs, absent=absent, changed=changed)
        scale = (True, update.lr_scale.node) if hasattr(update.lr_scale, "node") else update.lr_scale
        given = tape.gradients(update.gradient, len(self.params))
        fresh = given if update.fresh is None else tape.gradients(update.fresh, len(self.params))
        fresh_of_algorithm = fresh if update.momentum == "algorithm" else None
        return _Program(tape, outputs, given, fresh_of_algorithm, scale, update.steps, absent, changed)

    def _run(self, program: _Program, changes: Sequence[Tensor] = ()) -> list[Tensor]:
        """Return `program.outputs`. Apply its update, and `changes`: one by `program.changed`, then their decays."""
        inputs, computed = program.tape.inputs, program.computed
        values: dict[int, Tensor] = {}
        if computed or program.update is not None or changes:
            compiled, used = self._function(program, changes)
            results, read = compiled([*(inputs[n] for n in used), *changes])
            values = dict(zip(computed, results, strict=True))
            if read:
                self._changed = tuple(sorted({*self._changed, *program.changed}))
                self._before = self.params if program.update is not None else self._before
                self._keep(*read)
        return [values[n] if n in values else inputs[n] for n in program.outputs]

    def _function(
        self, program: _Program, changes: Sequence[Tensor]
    ) -> tuple[Callable[[list[Tensor]], Any], list[int]]:
        """Return the compiled function of this arithmetic, and the inputs that it takes."""
        key = program.key
        if key not in self._compiled:
            used = program.used
            taken = [program.tape.inputs[n] for n in used], changes
            specs = [[tf.TensorSpec(t.shape, t.dtype) for t in tensors] for tensors in taken]
            self._compiled[key] = flat_call(self._compile(program, used).get_concrete_function(*specs)), used
        return self._compiled[key]

    def _compile(self, program: _Program, used: list[int]) -> Any:
        operations, first, count = list(program.tape.operations), program.first, len(program.tape.inputs)
        computed = program.computed

        def run(inputs: list[Tensor], changes: list[Tensor]) -> tuple[list[Tensor], Any]:
            given: list[Tensor] = [None] * count
            for n, tensor in zip(used, inputs, strict=True):
                given[n] = tensor
            given[:first] = self._scalars(given[0], first) if first else []
            if program.clips:  # the algorithm's momentum sums clipped gradients
                span = slice(program.volatile.start, program.volatile.stop)
                given[span] = clipped(self._updated.optimizer, given[span])
            nodes = evaluate(operations, given, CALLS)
            outputs = [tf.raw_ops.DeepCopy(x=nodes[n]) if n in program.volatile else nodes[n] for n in computed]
            for number, position in enumerate(program.changed):
                _move(tensor_variable(self.part.others[position]), changes[-1][number], changes[number])
            if program.update is not None:
                self._apply(nodes, program)
            return outputs, self._read() if program.update is not None or changes else None

        return tf.function(run, autograph=False)

    def _scalars(self, counts: Tensor, first: int) -> list[Tensor]:
        optimizer = self._updated.optimizer
        rates = [current_rate(optimizer), tf.constant(momentum_of(optimizer), tf.float32)]
        return rates if first == len(rates) else [*tf.unstack(counts), *rates]

    def _apply(self, nodes: list[Tensor], program: _Program) -> None:
        assert program.update is not None
        kept = [i for i in range(len(program.update)) if i not in program.absent]
        gradients = [nodes[program.update[i]] for i in kept]
        if program.steps is not None and self.optimizer is None:
            self.part.take_off(gradients, kept, program.steps)
            return
        fresh = None if program.fresh is None else [nodes[program.fresh[i]] for i in kept]
        is_node = isinstance(program.lr_scale, tuple)
        rate = nodes[program.lr_scale[1]] if is_node else program.lr_scale
        self._updated.apply(gradients, kept, None if not is_node and rate == 1.0 else rate, fresh)
        if self.optimizer is not None:
            self.part.count(1 if program.steps is None else program.steps)

    # -- variables -----------------------------------------------------------------------------------------

    def _read(self) -> tuple[list[Tensor], list[Tensor], list[Tensor]]:
        groups = (self.part.trainable, self.part.others, self.part.scalars)
        trainable, others, scalars = ([tensor_variable(v).read_value() for v in group] for group in groups)
        return trainable, others, scalars

    def _keep(self, params: Sequence[Tensor], others: Sequence[Tensor], scalars: Sequence[Tensor]) -> None:
        self.params, self._others, self._optimizer_scalars = tuple(params), tuple(others), tuple(scalars)

    def _sent(self, trainable: Sequence[Tensor]) -> Sent:
        return Sent(trainable, self._others, self._optimizer_scalars, self._changed)

    def _whole(self, gradient: WorkerGradient) -> list[Tensor]:
        return [self._zero(i) if tensor is None else tensor for i, tensor in enumerate(gradient.gradient)]

    def _zero(self, index: int) -> Tensor:
        if index not in self._zeros:
            self._zeros[index] = tf.zeros_like(self.params[index])
        return self._zeros[index]
