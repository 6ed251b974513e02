"""Users see our lines, not TensorFlow's chatter at import. What is not known chatter is passed on.

TensorFlow's C++ writes to file descriptor 2 before any setting of its own is heard, so the descriptor is turned aside
while the module loads.
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

_CHATTER = re.compile(
    r"WARNING: All log messages before absl::InitializeLog"
    r"|[IWE]\d{4} .*(port|cudart_stub|cpu_feature_guard|cuda_\w+|computation_placer)\.cc:"
    r"|To enable the following instructions:"
    r"|.*(port|cpu_feature_guard|cudart_stub)\.cc:\d+\]"
)


def variables() -> dict[str, str]:
    """Environment that keeps TensorFlow quiet; what the user has set stays."""
    wanted = {"TF_CPP_MIN_LOG_LEVEL": "2", "GRPC_VERBOSITY": "ERROR"}
    return {name: os.environ.get(name, value) for name, value in wanted.items()}


@contextlib.contextmanager
def quiet_import() -> Iterator[None]:
    """While this holds, the first import of TensorFlow is quiet."""
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
        with without_chatter():
            exec_module(module)
            module.config.list_physical_devices()  # looks for CUDA, and complains where there is none

    return wrapper


@contextlib.contextmanager
def without_chatter() -> Iterator[None]:
    """Hold back what is written to file descriptor 2; pass on, at the end, what is not chatter."""
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
    """Whether TensorFlow says this at every import."""
    return _CHATTER.match(line) is not None
