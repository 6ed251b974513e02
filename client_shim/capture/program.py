"""Capture of the script's model as the program of a job."""

import contextlib
import hashlib
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import cloudpickle

from fdt import PACKAGES
from fdt.blobs import Blobs
from fdt.job import Program
from fdt.keras import Flavor
from fdt.service.blame import LIBRARIES
from fdt.trainable import Trainable


def capture_program(flavor: Flavor, model: Any, blobs: Blobs) -> tuple[Program, Trainable]:
    """Put the built and compiled `model` where workers find it.

    Two calls give the same digest if only training has changed the model in between.

    Args:
        flavor: The Keras that the model belongs to.
        model: The model.
        blobs: The shared memory of the client and the engine.

    Returns:
        The program, with its digest and the references of its blobs, and the model with its variables.

    Raises:
        NeedsReplica: An object cannot be pickled; the message names it.
    """
    trainable, config, objects = _written(flavor, model)
    program = Program(flavor.name, _digest(config, objects), blobs.put(config), blobs.put(objects))
    return program, trainable


def digest_of(flavor: Flavor, model: Any) -> str:
    """Return the digest that a program of `model` would have now."""
    return _digest(*_written(flavor, model)[1:])


def _written(flavor: Flavor, model: Any) -> tuple[Trainable, bytes, bytes]:
    with local_modules_by_value():
        objects, script_variables = flavor.dumps(model)
    trainable = Trainable(flavor, model, script_variables)
    return trainable, json.dumps({"settings": flavor.settings(), "layout": trainable.layout()}).encode(), objects


def _digest(config: bytes, objects: bytes) -> str:
    return hashlib.sha256(config + objects).hexdigest()


@contextlib.contextmanager
def local_modules_by_value() -> Iterator[None]:
    """Within, cloudpickle pickles the modules beside the script by value: workers may not be able to import them."""
    modules = [m for m in list(sys.modules.values()) if _is_local(m)]
    added = [m for m in modules if m.__name__ not in cloudpickle.list_registry_pickle_by_value()]
    for module in added:
        cloudpickle.register_pickle_by_value(module)
    try:
        yield
    finally:
        for module in added:
            cloudpickle.unregister_pickle_by_value(module)


def _is_local(module: ModuleType) -> bool:
    file = getattr(module, "__file__", None)
    name = getattr(module, "__name__", "__main__")
    if not file or name == "__main__" or name not in sys.modules or name.partition(".")[0] in PACKAGES:
        return False
    return not file.startswith(LIBRARIES) and not str(Path(file).resolve()).startswith(LIBRARIES)
