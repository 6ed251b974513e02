"""The scripts of the compatibility suite, and what an engine does otherwise than one machine."""

from pathlib import Path

from tests.catalogue import Script

SCRIPTS = Path(__file__).parent / "scripts"
# What does not print the same numbers under HFDT, and why.
OTHER_NUMBERS = {
    "fit_mixed": "float16 rounds the sums of slices otherwise, and it shuffles",
    "fit_augment": "random augmentation draws differently on each rank",
    "tape_until": "it sets no seed",
}
# What prints in every step of a session, or with v1's optimizers: an NFDT worker takes only its own. With how far the
# numbers of the last line may be from those alone.
STEPS_PRINTED = {
    "tf1_eager": 1.0,
    "tf1_feed": 0.25,
    "tf1_monitored": 0.5,
}
# What an engine refuses, and the words it does so with.
REFUSED = {
    ("tape_by_hand", "nfdt"): "assigns to weights without an optimizer",
    ("tape_graph_loop", "nfdt"): "workers cannot take the training step",
    ("tf1_fixed", "hfdt"): "any number of rows",
    ("tf1_accumulate", "nfdt"): "compute and apply gradients in one run",
}
# A third of them, in the tests: one start for all of a group (bundle.py).
QUICK = {
    "extract": ["fit_ragged", "fit_sparse_tensor", "fit_strings", "fit_infinite", "fit_finetune"],
    "replica": [
        "tape_eager",
        "tape_function",
        "tape_arrays",
        "on_batch",
        "tape_module",
        "tape_files",
        "tape_next",
        "tape_sum",
        "tape_eager_sum",
        "tape_leave",
        "tape_writers",
        "tf1_graph",
        "tf1_gan",
        "tf1_eager",
    ],
}


ALL = {path.stem: Script(path) for path in sorted(SCRIPTS.glob("*.py")) if not path.stem.startswith("beside_")}
