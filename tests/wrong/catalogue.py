"""The catalogue of scripts: the tolerance of their numbers against those alone, and which of them are refused.

A script is one file of scripts/. It trains five steps and prints numbers
that a user would print, nothing before its first update, and each weight's sum and norm at the end.
"""

from pathlib import Path

from tests.catalogue import Script

SCRIPTS = Path(__file__).parent / "scripts"
FLOAT64, FLOAT32 = 1e-9, 1e-5
# Relative tolerances other than FLOAT64, and why.
TOLERANCE: dict[str, tuple[float, str]] = {
    "ctc_loss": (FLOAT32, "TensorFlow has this loss in float32 only"),
    "fit_masked_norm": (FLOAT32, "fused normalization has no float64"),
    "float32_cnn": (FLOAT32, "it trains in float32"),
    "map_not_deterministic": (1e-7, "it prints eight digits: the order of rows is another in every process"),
    "printed_by_tensorflow": (1e-6, "NumPy prints arrays with eight digits"),
}
# Found to be trained by `fit`, which is sent to workers.
EXTRACT = {path.stem for path in SCRIPTS.glob("fit_*.py") if path.stem != "fit_beside_loop"}
# Their first lines must be the process's first: changes of files are in order until it trains.
FIRST_IN_PROCESS = {"made_files", "tried_files"}
# What is refused before the first update, and words of the message.
REFUSED = {
    "fit_accumulated_in_branch": "the step applies gradients within a branch, a loop or a tf.function, at",
    "fit_applied_in_branch": "the step applies gradients within a branch, a loop or a tf.function, at",
    "fit_changed_table": "LookedUp (fit_changed_table.py:15) looks up self.table, a table that may change, and",
    "fit_clipped_by_hand": "may need all rows of a batch",
    "fit_constant_batch": "the step fails on a part of a batch",
    "fit_counted_rows": "assigns variable 'sequential/count/variable' (fit_counted_rows.py:19) a value that depends on",
    "fit_eager_counter": "each step runs the Python code of Counting (fit_eager_counter.py:14)",
    "fit_eager_settings": "the model runs eagerly, so each step reads objects that the callback Scale",
    "fit_fixed_seed": "draws by a fixed seed for each row (StatelessRandomNormalV2 at fit_fixed_seed.py:14), alike",
    "fit_eager_words": "the model runs eagerly, so each step runs the Python code of Read (fit_eager_words.py:14)",
    "fit_functions_eager": "functions_eagerly is on, so each step runs the Python code of Growing (fit_functions_",
    "fit_held_partial": "the model runs eagerly, so each step runs the Python code of scaled (fit_held_partial.py:16)",
    "fit_gradients_in_branch": "a mean over samples, but the sum at fit_gradients_in_branch.py:23 is not",
    "fit_ignored_labels": "may need all rows of a batch",
    "fit_listed_optimizers": "assigns variable 'dense_1/kernel'",
    "fit_mean_in_branch": "Sums.train_step (fit_mean_in_branch.py:14) must be a mean or a sum over samples",
    "fit_metric_of_means": "metric 'loss_of_means' (fit_metric_of_means.py:19) has a state that cannot be summed",
    "fit_noisy_accumulated": "random numbers (RandomStandardNormal at fit_noisy_accumulated.py:15), and each rank",
    "fit_noisy_branch": "random numbers (RandomStandardNormal at fit_noisy_branch.py:19), and each rank draws others",
    "fit_noisy_global_seed": "random numbers (StatelessRandomNormalV2 at fit_noisy_global_seed.py:21), and each rank",
    "fit_noisy_gradients": "random numbers (RandomStandardNormal at fit_noisy_gradients.py:19), and each rank draws",
    "fit_noisy_optimizer": "random numbers (RandomStandardNormal at fit_noisy_optimizer.py:15), and each rank draws",
    "fit_noisy_weights": "random numbers (RandomStandardNormal at fit_noisy_weights.py:21), and each rank draws others",
    "fit_pairs_of_rows": "the step fails on a part of a batch (InvalidArgumentError: Input to reshape is",
    "fit_ragged_masked": "may need all rows of a batch (RealDiv at fit_ragged_masked.py:",
    "fit_ragged_padded": "rows of other lengths: Padded (fit_ragged_padded.py:16) may depend on the longest row of a",
    "fit_raised_penalty": "may need all rows of a batch",
    "fit_raised_by_step": "Raised.compute_loss (fit_raised_by_step.py:23) must be a mean or a sum over samples",
    "fit_raised_late": "the loss loss (fit_raised_late.py:15) must be a mean or a sum over samples",
    "fit_rare_branch": "a mean over samples, but the sum at fit_rare_branch.py:20 is not",
    "fit_rare_complex": "a mean over samples, but the sum at fit_rare_complex.py:17 is not",
    "fit_rare_counter": "assigns variable 'rare/variable' (fit_rare_counter.py:20) a value that depends on the rows",
    "fit_rare_decayed": "a mean over samples, but the sum at fit_rare_decayed.py:26 is not",
    "fit_rare_function": "a mean over samples, but the sum at fit_rare_function.py:17 is not",
    "fit_rare_log": "Scored.train_step (fit_rare_log.py:15) returns 'score', which is neither a mean nor a sum",
    "fit_rare_mean": "metric 'rare' (fit_rare_mean.py:19) has a state that cannot be summed over ranks",
    "fit_rare_outliers": "assigns variable 'sequential/outliers/variable' (fit_rare_outliers.py:20) a value that",
    "fit_rare_pipeline": "a mean over samples, but the sum at fit_rare_pipeline.py:16 is not",
    "fit_rare_product": "a mean over samples, but the sum at fit_rare_product.py:16 is not",
    "fit_rare_tokens": "assigns variable 'rare/variable' (fit_rare_tokens.py:20) a value that depends on the rows",
    "fit_rare_tokens_from_one": "assigns variable 'rare/variable' (fit_rare_tokens_from_one.py:20) a value that",
    "fit_rare_width": "a mean over samples, but the sum at fit_rare_width.py:21 is not",
    "fit_rare_spectrum": "a mean over samples, but the sum at fit_rare_spectrum.py:20 is not",
    "fit_rare_labels": "a mean over samples, but the sum at fit_rare_labels.py:16 is not",
    "fit_running_sum": "assigns variable 'sequential/total/variable'",
    "fit_set_before_the_trace": "the callback Double (fit_set_before_the_trace.py:21) changed an object",
    "fit_short_batch": "but not for the 6 rows of the last one: Careful (fit_short_batch.py:14) may depend on",
    "fit_silent_sum": "a mean over samples, but the sum at fit_silent_sum.py:17 is not",
    "fit_validation_assigns": "validation assigns the variable",
    "fit_validation_sum": "losses and metrics of validation do not add up over slices of a batch: OnlyInTest",
    "fit_validation_rare": "losses and metrics of validation do not add up over slices of a batch: OnlyInTest",
    "fit_stopped_at_begin": "a callback must not set stop_training before an epoch begins",
    "fit_sparse_masked": "may need all rows of a batch (RealDiv at fit_sparse_masked.py:",
    "fit_text_unmasked": "'text_vectorization' pads the rows of a batch to the longest, and each rank has other rows",
    "fit_text_unmasked_late": "'text_vectorization' pads the rows of a batch to the longest, and each rank has other",
    "fit_traced_again": "the callback Raise (fit_traced_again.py:20) changed an object that the training step",
    "fit_updates_by_hand": "assigns variable 'dense_1/kernel'",
    "fit_other_batches": "may need all rows of a batch (Reshape at fit_other_batches.py:1",
    "fit_later_validation": "losses and metrics of validation do not add up over slices of a batch: Centred",
    "fit_vector_log": "returns 'columns', which is not one number",
    "fit_weighted_by_updates": "Growing.train_step",
    "forward_mode": "forward-mode differentiation",
    "session_pairs": "a session's gradient must be a mean or a sum",
    "session_sum": "a session's gradient must be a mean or a sum",
}
# Those that the tests run besides those of issue 13; all: python -m tests.wrong.
OTHERS = {
    "break_in_function",
    "check_numerics",
    "ctc_loss",
    "dataset_in_function",
    "forward_mode",
    "gradient_penalty",
    "input_signature",
    "iterate_rows",
    "lstm_in_function",
    "map_error_caught",
    "mapped_rows",
    "nan_rows",
    "noise_in_dataset_loop",
    "noise_in_function",
    "py_function_scalar",
    "ragged_gradients",
    "random_at_run_time",
    "read_as_numpy",
    "session_fetches",
    "switch_case_draws",
    "two_functions_draw",
    "unused_unstack",
}


class CheckedScript(Script):
    @property
    def tolerance(self) -> float:
        return TOLERANCE.get(self.name, (FLOAT64, ""))[0]

    @property
    def capture(self) -> str:
        return "extract" if self.name in EXTRACT else "replica"


ALL = {path.stem: CheckedScript(path) for path in sorted(SCRIPTS.glob("*.py"))}
# Those whose numbers under `nfdt run -np 1`, where the server is in the worker's process, are compared, too.
NFDT = [
    *("fit_adversarial", "fit_annealed_weight", "fit_backup", "fit_dict_of_logs", "fit_divided_gradients"),
    *("fit_drawn_seed", "fit_epoch_end_reads", "fit_evaluates_first", "fit_held_optimizers", "fit_later_validation"),
    "fit_named_batches",
    *("fit_object_steps", "fit_overridden", "fit_raised_penalty", "fit_renamed_metric", "fit_reset_metrics"),
    *("fit_running_mean", "fit_summed_logs", "fit_weighted_by_updates", "fit_weighted_mean", "fit_whole_executions"),
]
# Those of issue 13 and of the feasibility study, and OTHERS.
QUICK = [name for name, script in ALL.items() if name in OTHERS or script.style.startswith(("issue: ", "placements: "))]
