"""The private names of TensorFlow, Keras and tf_keras that this project uses.

No other package imports them (ruff's TID251). Where releases differ, the difference is here. A module imports one
library: `keras3`, `tf_keras` and `tensorflow` the one of its name. This one imports none of them: it names functions
that are patched when a script imports them. tests/single/test_compat_hooks.py states what is relied on.
"""

import importlib
from typing import Any, NamedTuple


def of(flavor: str) -> Any:
    """Return the module of the private names of `flavor`, "keras" or "tf_keras"; import that library alone."""
    return importlib.import_module("fdt.compat.keras3" if flavor == "keras" else "fdt.compat.tf_keras")


# The modules and classes that define `fit`. tf.keras is one of the two.
TRAINERS = {"keras.src.backend.tensorflow.trainer": "TensorFlowTrainer", "tf_keras.src.engine.training": "Model"}
# The modules, classes and methods that update variables.
OPTIMIZERS = {
    "keras.src.optimizers.base_optimizer": ("BaseOptimizer", "apply"),
    "tf_keras.src.optimizers.optimizer": ("Optimizer", "apply_gradients"),
    "tf_keras.src.optimizers.legacy.optimizer_v2": ("OptimizerV2", "apply_gradients"),
    "tensorflow.python.training.optimizer": ("Optimizer", "apply_gradients"),
}
# How the names of all modules of optimizers begin.
OPTIMIZER_MODULES = ("keras.src.optimizers.", "tf_keras.src.optimizers.", "tensorflow.python.training.optimizer")
# The trainers of other backends than TensorFlow, with the backend's name.
OTHER_BACKENDS = {
    "keras.src.backend.jax.trainer": ("JAXTrainer", "jax"),
    "keras.src.backend.torch.trainer": ("TorchTrainer", "torch"),
}
DOWNLOADS = {"keras.src.utils.file_utils": "get_file", "tf_keras.src.utils.data_utils": "get_file"}


class FileFunction(NamedTuple):
    """A function that opens, lists or changes files.

    Attributes:
        module: The module.
        owner: Its class; "" for a function of the module.
        name: The function.
        position: The position of the path among the arguments.
        writes: Whether it writes there.
    """

    module: str
    owner: str
    name: str
    position: int
    writes: bool


_FILE_IO, _CHECKPOINT = "tensorflow.python.lib.io.file_io", "tensorflow.python.checkpoint.checkpoint"
_DATASETS, _READERS = "tensorflow.python.data.ops.dataset_ops", "tensorflow.python.data.ops.readers"
FILE_FUNCTIONS = (
    FileFunction(_FILE_IO, "", "recursive_create_dir_v2", 0, True),
    FileFunction(_FILE_IO, "", "create_dir_v2", 0, True),
    FileFunction(_FILE_IO, "", "delete_recursively_v2", 0, True),
    FileFunction(_FILE_IO, "", "delete_file_v2", 0, True),
    FileFunction(_FILE_IO, "", "rename_v2", 0, True),
    FileFunction(_FILE_IO, "", "rename_v2", 1, True),
    FileFunction(_FILE_IO, "", "copy_v2", 0, False),
    FileFunction(_FILE_IO, "", "copy_v2", 1, True),
    FileFunction(_FILE_IO, "", "file_exists_v2", 0, False),
    FileFunction(_FILE_IO, "", "is_directory_v2", 0, False),
    FileFunction(_FILE_IO, "", "list_directory_v2", 0, False),
    FileFunction(_FILE_IO, "", "get_matching_files_v2", 0, False),
    FileFunction(_CHECKPOINT, "TrackableSaver", "save", 1, True),
    FileFunction(_CHECKPOINT, "TrackableSaver", "restore", 1, False),
    FileFunction("tensorflow.python.ops.summary_ops_v2", "", "create_file_writer_v2", 0, True),
    FileFunction("tensorflow.python.saved_model.save", "", "save_and_return_nodes", 1, True),
    FileFunction("tensorflow.python.saved_model.load", "", "load_partial", 0, False),
    # functions that open files in C++
    FileFunction("tensorflow.python.ops.gen_io_ops", "", "write_file", 0, True),
    FileFunction("tensorflow.python.ops.gen_io_ops", "", "read_file", 0, False),
    FileFunction("tensorflow.python.lib.io.tf_record", "TFRecordWriter", "__init__", 1, True),
    FileFunction(_DATASETS, "DatasetV2", "cache", 1, True),
    FileFunction(_DATASETS, "DatasetV2", "save", 1, True),
    FileFunction(_DATASETS, "DatasetV2", "load", 0, False),
    FileFunction(_READERS, "TFRecordDatasetV2", "__init__", 1, False),
    FileFunction(_READERS, "TextLineDatasetV2", "__init__", 1, False),
    FileFunction("tensorflow.python.training.saver", "Saver", "save", 2, True),
    FileFunction("tensorflow.python.training.saver", "Saver", "restore", 2, False),
    FileFunction("tensorflow.python.summary.writer.writer", "FileWriter", "__init__", 1, True),
)
FILE_CLASSES = {_FILE_IO: "FileIO", "h5py": "File"}  # classes whose constructor takes (name, mode)
