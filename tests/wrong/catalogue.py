"""The scripts, how near their numbers must be to those alone, and which of them today's engine gets wrong.

A script is one file of scripts/; the first line of its docstring says what it does. It trains five steps, prints
numbers a user would print, nothing before its first update, and each weight's sum and norm at the end.
"""

import ast
from dataclasses import dataclass
from pathlib import Path

SCRIPTS = Path(__file__).parent / "scripts"
FLOAT64, FLOAT32 = 1e-9, 1e-5
# Relative tolerances other than FLOAT64, and why.
TOLERANCE: dict[str, tuple[float, str]] = {
    "float32_cnn": (FLOAT32, "it trains in float32"),
    "map_not_deterministic": (1e-7, "it prints eight digits: the order of rows is another in every process"),
    "printed_by_tensorflow": (1e-6, "NumPy prints arrays with eight digits"),
}
# Found to be trained by `fit`, which is sent to workers.
EXTRACT = {"fit_raised_penalty", "assign_beside_fit"}
# What is refused before the first update, and words of the message.
REFUSED: dict[str, str] = {}
# Those that the tests run besides those of issue 13; all: python -m tests.wrong.
OTHERS = {
    "dataset_in_function",
    "gradient_penalty",
    "input_signature",
    "iterate_rows",
    "nan_rows",
    "read_as_numpy",
}
# What the engine does not do right yet; emptied with the placement engine.
NOT_YET: set[str] = {
    "accumulated_gradients",
    "argsort_curriculum",
    "attention_dropout",
    "barlow_twins",
    "batchnorm_eager",
    "boolean_mask",
    "class_centres",
    "clock_seed",
    "codebook",
    "correlation",
    "count_eager",
    "count_function",
    "dataset_in_function",
    "datetime_seed",
    "dice",
    "divided_by_shape",
    "dqn",
    "einsum_similarity",
    "fit_beside_loop",
    "fit_raised_penalty",
    "full_batch",
    "gan_two_tapes",
    "gather_other_rows",
    "gradient_penalty",
    "gru_masked",
    "half_sum",
    "in_batch_negatives",
    "iterate_rows",
    "keras_ops",
    "label_prior",
    "lookahead",
    "machine_seed",
    "map_not_deterministic",
    "masked_mean_eager",
    "maximum_mean_discrepancy",
    "mean_teacher",
    "memory_bank",
    "metric_objects",
    "mixup",
    "moco_queue",
    "multi_task",
    "normalized_gradient",
    "nt_xent",
    "numpy_batches_reused",
    "optimizer_and_assign",
    "own_optimizer",
    "pairwise_differences",
    "pairwise_ranking",
    "pcgrad",
    "persistent_tape",
    "printed_by_tensorflow",
    "prototypes",
    "python_generator",
    "read_as_numpy",
    "session_sum",
    "sharpness_aware",
    "sum_plus_l2",
    "tensor_slices",
    "top_k_losses",
    "train_on_batch_sum",
    "triplet_batch_hard",
    "two_models",
    "unbatched_sentences",
    "unseeded_dropout",
    "unseeded_random_state",
    "vae",
}


@dataclass(frozen=True)
class Script:
    path: Path

    @property
    def name(self) -> str:
        return self.path.stem

    @property
    def style(self) -> str:
        return (ast.get_docstring(ast.parse(self.path.read_text())) or "").split("\n")[0].rstrip(".")

    @property
    def tolerance(self) -> float:
        return TOLERANCE.get(self.name, (FLOAT64, ""))[0]

    @property
    def capture(self) -> str:
        return "extract" if self.name in EXTRACT else "replica"


ALL = {path.stem: Script(path) for path in sorted(SCRIPTS.glob("*.py"))}
# Those of issue 13 and of the feasibility study, and OTHERS.
QUICK = [name for name, script in ALL.items() if name in OTHERS or script.style.startswith(("issue: ", "placements: "))]
