"""Suppression of TensorFlow's known messages at import; other messages are passed on.

TensorFlow's C++ code writes to file descriptor 2 before it reads any setting, so the descriptor is redirected during
the import.
"""

import contextlib
import importlib.abc
import importlib.machinery
import importlib.util
import os
import re
import sys
import tempfile
from collections.abc import Iterator, Sequence
from types import ModuleType
from typing import Any

from fdt.early_start import lasting

_CHATTER = re.compile(
    r"WARNING: All log messages before absl::InitializeLog"
    r"|[IWE]\d{4} .*(port|cudart_stub|cpu_feature_guard|cuda_\w+|computation_placer)\.cc:"
    r"|To enable the following instructions:"
    r"|.*(port|cpu_feature_guard|cudart_stub)\.cc:\d+\]"
)


def variables() -> dict[str, str]:
    """Return environment variables that silence TensorFlow and gRPC; values that the user has set remain."""
    wanted = {"TF_CPP_MIN_LOG_LEVEL": "2", "GRPC_VERBOSITY": "ERROR"}
    return {name: os.environ.get(name, value) for name, value in wanted.items()}


@contextlib.contextmanager
def quiet_import() -> Iterator[None]:
    """Silence the first import of TensorFlow within the context, and keep garbage collection from it."""
    finder = _QuietFinder()
    sys.meta_path.insert(0, finder)
    try:
        yield
    finally:
        with contextlib.suppress(ValueError):
            sys.meta_path.remove(finder)


class _QuietFinder(importlib.abc.MetaPathFinder):
    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if fullname != "tensorflow":
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(fullname)
        if spec is not None and spec.loader is not None:
            spec.loader.exec_module = _quietly(spec.loader.exec_module)  # type: ignore[method-assign]
        return spec


def _quietly(exec_module: Any) -> Any:
    def wrapper(module: ModuleType) -> None:
        with without_chatter(), lasting():
            exec_module(module)
            module.config.list_physical_devices()  # searches for CUDA, and prints messages where there is none

    return wrapper


@contextlib.contextmanager
def without_chatter() -> Iterator[None]:
    """Hold back output to file descriptor 2 within the context; print the unknown messages at its end."""
    sys.stderr.flush()
    with tempfile.TemporaryFile() as held:
        real = os.dup(2)
        os.dup2(held.fileno(), 2)
        try:
            yield
        finally:
            sys.stderr.flush()
            os.dup2(real, 2)
            os.close(real)
            held.seek(0)
            for line in held:
                if not is_chatter(line.decode(errors="replace")):
                    os.write(2, line)


def is_chatter(line: str) -> bool:
    """Return whether this is a message that TensorFlow prints at every import."""
    return _CHATTER.match(line) is not None
