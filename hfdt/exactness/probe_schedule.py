"""The schedule of probes of a session (hfdt/exactness/probe.py): before its first epoch, and when its loss has changed.

A callback, or the script between two fits, may assign a variable that training does not update, for instance the weight
of a loss term. The traced step reads the variable, so another probe costs two small runs and no tracing.
"""

import contextlib
import functools
import inspect
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import tensorflow as tf

from client_shim.script_code import script_parts
from fdt.blobs import Blobs
from fdt.compat.tensorflow import InaccessibleTensorError
from fdt.errors import NeedsReplica
from fdt.job import State, is_on
from fdt.keras import attribute
from fdt.keras.variables import batch_norms, tensor_variable
from fdt.ops import reached
from fdt.service.blame import one_line
from hfdt.collectives import Comm
from hfdt.exactness import batchnorm
from hfdt.exactness.aggregates import agreed
from hfdt.exactness.fixed_draws import fixed_draws
from hfdt.exactness.gradient_pass import AppliedWithinError, GradientPass
from hfdt.exactness.own_draws import own_draws
from hfdt.exactness.probe import Probe, needs_replica
from hfdt.exactness.probe_rows import last_rows, rows_of
from hfdt.exactness.row_dependence import RowDependence, row_dependence
from hfdt.exactness.validation import check_test_step
from hfdt.worker.step_context import Reading, StepTerms

APPLIED_WITHIN = (
    "the step applies gradients within a branch, a loop or a tf.function, at {}, where ranks cannot exchange them"
)
DIVIDES = "`--capture replica` divides it"


class Probing:
    """The probes of a session.

    BatchNorm is over all ranks in a probe, also where training has it otherwise. Then the probe sees all the rest.

    `options`: the job's. `synchronised`: whether the algorithm lets BatchNorm be over all ranks in training.
    `asked`: what the step exchanges in training, as StepContext.sum names it ("gradient", "mask", ...).
    """

    def __init__(self, trainable: Any, comm: Comm, options: Mapping[str, str], *, synchronised: bool) -> None:
        self._trainable, self._comm = trainable, comm
        self._layers = batch_norms(trainable.model)
        self._local = options.get("batch_norm", "sync") == "local" and bool(self._layers)
        self._allow = self._local or is_on(options, "allow_inexact")
        self._synchronised = synchronised and not self._local
        self._whole_batches = options.get("batch") == "per-worker"  # each rank may pad its own to another length
        self._own = {name: getattr(trainable.model, name) for name in ("train_step", "test_step", "reset_metrics")}
        self._probe: Probe | None = None
        self._spec: Any = None  # of the data that were probed
        self._forms = set[str]()  # the rows of these data and of validation data, in text
        self.asked: set[str] = set()
        self._written, self._writes, self._said = False, 0, [""]

    def first(self, source: Any, terms: StepTerms, validation: Any = None) -> list[str]:
        """Probe, and set `terms.reading`. Returns lines for the user. Raises NeedsReplica. A collective."""
        self._terms, self._spec = terms, source.element_spec
        try:
            whole = source.first_batch()
        except IndexError:  # no data: Keras raises its own error
            return []
        if not self._allow and (padding := _padding(self._trainable.model)):
            parts = ", ".join(self._scripts[:3])
            cause = f"{padding!r} pads the rows of a batch to the longest, and each rank has other rows"
            raise needs_replica(f"{cause}: {parts}" if parts else cause)
        self._probe = None
        with self._as_scripts_have_it(), self._failures_refused():
            own = replace(terms, compression=None, sent_bytes={})
            self._probe = Probe(self._trainable, own, whole, last_rows(source), getattr(source, "spread", None))
            said = self._read(self._probe, whole) + self._look(self._probe)
            self._note_alike(self._probe)
            if self._checks(validation):
                with contextlib.suppress(IndexError):  # no data: Keras raises its own error
                    read = replace(own, reading=terms.reading)
                    check_test_step(self._trainable, read, self._probe.row_cost, validation)
        self._forms.add(self._form_of(source, validation))
        self.asked = {name.split(".")[1] for name in own.sent_bytes}
        if self._local:
            self.asked -= {"batchnorm", "batchnorm_gradient"}
        return said

    def _note_alike(self, probe: Probe) -> None:
        """Note the embeddings whose indices are the same on every rank, where all ranks find so. A collective."""
        own = set() if self._whole_batches else probe.gradient_pass.alike()
        ids = [id(tensor_variable(v)) for v in self._trainable.trainable]
        found = self._comm.sum([tf.constant([float(i in own) for i in ids], tf.float64)], "hfdt.probe")[0]
        self._terms.alike.clear()
        self._terms.alike.update(i for i, count in zip(ids, found.numpy(), strict=True) if count == self._comm.size)

    @contextlib.contextmanager
    def _failures_refused(self) -> Iterator[None]:
        """Within the context, raise NeedsReplica where a part of a batch cannot be computed.

        A step may hold the size of a batch as a constant: `tf.ones((batch_size, 1)) * logits`. A branch, or a
        tf.function that the step calls, may apply gradients, which its graph alone can have.
        """
        try:
            yield
        except AppliedWithinError as error:
            reason = APPLIED_WITHIN.format(error)
            raise NeedsReplica(f"{reason}; {DIVIDES}", reason, trained=False) from error
        except (tf.errors.InvalidArgumentError, InaccessibleTensorError) as error:
            line = self._probe.failed_line(error) if self._probe is not None else ""
            cause = ", at ".join(filter(None, [one_line(error), line]))
            raise needs_replica(f"the step fails on a part of a batch ({cause})") from error
        except ValueError as error:
            if self._probe is not None or not (rows := _fixed_rows(self._trainable.model)):
                raise
            cause = one_line(error)
            raise needs_replica(
                f"the model's inputs have a fixed batch size, {rows}, and the step fails for others ({cause})"
            ) from error

    def traced_pass(self, batch: Any) -> GradientPass | None:
        """Return the traced pass that was probed, if training may run it on such a batch."""
        if self._probe is None or (self._layers and not self._synchronised) or self._terms.reading is not Reading.MEAN:
            return None
        found = self._probe.gradient_pass
        return found if found.trains(batch) else None

    def suits(self, source: Any) -> bool:
        """Return whether the data of a later job have the structure of those that were probed. A collective."""
        other = self._comm.size > 1 and (self._probe is None or source.element_spec != self._spec)
        return not agreed(self._comm, float(other))

    def warm(self, source: Any, validation: Any) -> list[str]:
        """Probe before a later job of the same program on data that `suits`. A collective.

        Where the script wrote a part of the step, other numbers of rows, and other validation data, are probed once.
        """
        if self._comm.size > 1 and agreed(self._comm, float(self._form_of(source, validation) not in self._forms)):
            return self.first(source, self._terms, validation)
        return self.again(each=True)

    def _form_of(self, source: Any, validation: Any) -> str:
        if not (self._probe is not None and self._probe.by_script) and not self._scripts:
            return ""
        checked = [source, validation] if self._checks(validation) else [source]
        return repr([(each.element_spec, rows_of(each), last_rows(each)) for each in checked])

    def _checks(self, validation: Any) -> bool:
        """Return whether the test step is compared on `validation`."""
        return validation is not None and bool(self._scripts) and self._synchronised and not self._allow

    @functools.cached_property
    def _scripts(self) -> list[str]:
        """The parts of the model that are the script's; a session has one program."""
        return script_parts(self._trainable.model)

    def load(self, state: State, blobs: Blobs) -> None:
        """Assign the groups in `state`, and record whether variables changed that only scripts assign. A collective."""
        seeds = {id(v) for v in self._trainable.seeds}
        variables = [tensor_variable(v) for v in self._trainable.non_trainable if id(v) not in seeds]
        before = [tf.identity(v) for v in variables] if state.model.id and self._probe is not None else []
        self._trainable.load(state, blobs)
        if before:
            changed = any(bool(tf.reduce_any(v != b)) for v, b in zip(variables, before, strict=True))
            self._written |= bool(agreed(self._comm, float(changed)))

    def again(self, *, each: bool) -> list[str]:
        """Probe again if a script has assigned variables; without `each`, at the 1st, 2nd, 4th, 8th time. A collective.

        Returns the lines for the user that are new. Raises NeedsReplica.
        """
        if self._probe is None or not self._written:
            return []
        self._writes += 1
        if not each and self._writes & (self._writes - 1):
            return []
        self._written = False
        with self._as_scripts_have_it():
            return self._look(self._probe)

    def _look(self, probe: Probe) -> list[str]:
        found = probe.run(allow_inexact=self._allow, exact=self._synchronised)
        self._terms.note_log_sources(replace(self._terms.log_sources, summed=found.summed))
        if found.reading is not self._terms.reading:
            self._terms.change_reading(found.reading)
            self._trainable.model.train_function = self._trainable.model.test_function = None
        new = [note for note in found.notes if note not in self._said]
        self._said += new
        return new

    def _read(self, probe: Probe, whole: Any) -> list[str]:
        """Read a step that the script wrote a part of. Raises NeedsReplica where it needs rows of other ranks."""
        found = row_dependence(self._trainable, whole, self._comm.size) if probe.by_script else RowDependence()
        if not self._terms.own_logs:
            self._terms.note_log_sources(found.logs)
            probe.note_log_sources(found.logs)
        probe.aggregates.note_unproven(found.unproven)
        traced = probe.gradient_pass.traced
        drawn = fixed_draws(self._trainable, traced) if probe.by_script and traced is not None else []
        noise = own_draws(self._trainable, probe.gradient_pass) if traced is not None else []
        reasons = [
            *(f"may need all rows of a batch ({each}), of which each rank has a part" for each in found.operations[:1]),
            *(f"draws by a fixed seed for each row ({each}), alike on all ranks" for each in drawn[:1]),
            *(f"assigns variables random numbers ({each}), and each rank draws others" for each in noise[:1]),
        ]
        if not reasons or not self._synchronised:
            return []
        message = f"the training step {reasons[0]}"
        if self._allow:
            return [message]
        raise needs_replica(message)

    @contextlib.contextmanager
    def _as_scripts_have_it(self) -> Iterator[None]:
        """Restore the model's own methods, and BatchNorm over all ranks, while the context lasts."""
        with contextlib.ExitStack() as stack:
            for name, method in self._own.items():
                stack.enter_context(attribute(self._trainable.model, name, method))
            if not self._synchronised:
                stack.enter_context(batchnorm.synchronised(self._layers, self._trainable.flavor.name))
            yield


def _fixed_rows(model: Any) -> int:
    """Return the batch size that the inputs of a functional model fix; 0 if they fix none."""
    shapes = (tf.TensorShape(each.shape) for each in getattr(model, "inputs", None) or [])
    return next((shape[0] for shape in shapes if shape.rank and shape[0]), 0)


def _padding(model: Any) -> str:
    """Return the name of a TextVectorization whose rows are as long as the batch's longest, and are not masked."""
    layers = list(model._flatten_layers())
    found = (layer for layer in layers if type(layer).__name__ == "TextVectorization" and not layer._ragged)
    padded = [t for t in found if t._output_mode == "int" and t._output_sequence_length is None]
    return next((t.name for t in padded if any(map(_drops_mask, _behind(t))) or not _is_masked(t, layers)), "")


def _behind(text: Any) -> list[Any]:
    """Return the layers of functional models that compute something of what `text` does, and those within them."""
    users = [each for each in reached([text], _users) if hasattr(each, "_flatten_layers")]  # no operations
    return [layer for user in users for layer in user._flatten_layers()]


def _users(layer: Any) -> list[Any]:
    return [getattr(node, "operation", None) or node.layer for node in layer._outbound_nodes]


def _is_masked(text: Any, layers: Sequence[Any]) -> bool:
    """Return whether each Embedding of a TextVectorization's numbers masks padded places; any of `layers` must."""
    flags = [each.mask_zero for each in _users(text) if hasattr(each, "mask_zero") and each in layers]
    return all(flags) and any(getattr(layer, "mask_zero", False) for layer in layers)


def _drops_mask(layer: Any) -> bool:
    """Return whether a layer of a functional model has masked inputs, and neither reads nor passes on the mask.

    An operation, of which tf_keras makes a layer, may take one place of the rows: the probe compares.
    """
    if type(layer).__name__ in ("TFOpLambda", "SlicingOpLambda"):
        return False
    inputs = tf.nest.flatten([node.input_tensors for node in layer._inbound_nodes])
    masked = any(getattr(tensor, "_keras_mask", None) is not None for tensor in inputs)
    return masked and not layer.supports_masking and "mask" not in inspect.signature(layer.call).parameters
