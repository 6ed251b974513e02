"""Execution of a script as `__main__`, as `python script.py` or `python -m package.module` would."""

import ast
import contextlib
import importlib.machinery
import importlib.util
import os
import sys
import traceback
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import CodeType, ModuleType, TracebackType
from typing import Any

from client_shim import notebook
from fdt import PACKAGES
from fdt.cli import DASH_M, module_of
from fdt.ending import behind
from fdt.errors import EXIT_INTERRUPTED, NeedsReplica, UserError, WorkerError
from fdt.rpc.session_pb2 import Failed
from fdt.signals import Ended

OUR_FOLDERS = tuple(str(Path(__file__).resolve().parent.parent / name) + os.sep for name in PACKAGES)

RUNNING: list[str] = []  # the script of this process, while it runs
Rewrite = Callable[[ast.Module], ast.Module]


class ScriptError(Exception):
    """An error of the script's own code in a worker; `str` is its traceback."""


def failure_of(failed: Failed) -> Exception:
    """Return the error of a job that failed."""
    if failed.replica:
        return NeedsReplica(failed.message, failed.replica, trained=True)
    return ScriptError(failed.detail) if failed.users_code else WorkerError(failed.message)


def run_script(
    script: str,
    argv: Sequence[str],
    name: str | None = None,
    rewrite: Rewrite | None = None,
    died: Callable[[BaseException], object] = lambda error: None,
) -> int:
    """Run `script` with `argv` in this process. `__main__`, sys.argv and sys.path are restored afterwards.

    Args:
        script: Path of the user's Python file, or "-m package.module".
        argv: Arguments of the script, without its name.
        name: argv[0], where that is not `script`.
        rewrite: Transforms the script's syntax tree before it is compiled.
        died: Called with the exception that ended the script.

    Returns:
        The script's exit code; 1 for an exception other than those below, which is printed as Python would print it.

    Raises:
        UserError: The script asks for something that is not supported, or cannot be read or parsed.
        Ended: A signal ended the script.
    """
    if script in _INSTEAD:
        return _INSTEAD[script]()
    named, process, code = module_of(script), os.getpid(), 0
    codes = _compile(script, rewrite) if named is None else ()
    module = _main_module(os.path.abspath(script)) if named is None else ModuleType("__main__")
    with _standing_in(module, [_argv0(script, name), *argv], _first_folder(script)):
        try:
            for part in codes if named is None else _code_of_module(named, module, rewrite):
                _execute(part, module.__dict__)
        except BaseException as error:
            if isinstance(error, (UserError, Ended)) and os.getpid() == process:
                raise
            code = _ended_by(error, script, died if os.getpid() == process else lambda error: None)
        finally:
            _leave(process, code)
    return code


def _ended_by(error: BaseException, script: str, died: Callable[[BaseException], object]) -> int:
    """Return the exit code of a script that raised `error`. Print the error as Python would."""
    if isinstance(error, SystemExit):
        return _exit_code(error.code)
    if isinstance(error, KeyboardInterrupt):
        return EXIT_INTERRUPTED
    if isinstance(error, ScriptError):
        print(str(error).rstrip(), file=sys.stderr)
        return 1
    died(error)
    without_our_frames(error)
    if notebook.is_notebook(script):  # Python's own hook looks for source lines in files alone
        traceback.print_exception(error)
    else:
        sys.excepthook(type(error), error, error.__traceback__)
    return 1


def _argv0(script: str, name: str | None) -> str:
    if module_of(script) is not None:
        return DASH_M
    return script if name is None else name


def _first_folder(script: str) -> str:
    """Return the first folder of sys.path."""
    return os.path.dirname(os.path.realpath(script)) if module_of(script) is None else os.getcwd()


_INSTEAD: dict[str, Callable[[], int]] = {}


@contextlib.contextmanager
def run_instead(script: str, body: Callable[[], int]) -> Iterator[None]:
    """Within the context, `run_script(script)` returns what `body` returns: a cell runs in its kernel's namespace."""
    _INSTEAD[script] = body
    try:
        yield
    finally:
        del _INSTEAD[script]


def _execute(code: CodeType, names: dict[str, Any]) -> None:
    try:
        exec(code, names)
    except SystemError as error:
        hidden = behind(error)
        if hidden is None:
            raise
        raise hidden from None


def _compile(script: str, rewrite: Rewrite | None) -> Sequence[CodeType]:
    """Return the script's code: of a notebook, that of each cell."""
    try:
        with open(os.path.abspath(script), "rb") as file:  # the absolute path, which other ranks' scratch folders map
            source = file.read()
    except (FileNotFoundError, IsADirectoryError):
        raise UserError(f"no such script. Received: {script}") from None
    except OSError as error:
        raise UserError(f"the script cannot be read: {script}: {error.strerror}") from None
    return _compiled(source, os.path.abspath(script), script, rewrite)


def _compiled(source: bytes, path: str, shown: str, rewrite: Rewrite | None) -> Sequence[CodeType]:
    try:
        if notebook.is_notebook(shown):
            return notebook.compiled(notebook.read(path, source), rewrite)
        tree = ast.parse(source, path)
        _refuse_hidden_modules(tree, path, shown)
        return [compile(tree if rewrite is None else rewrite(tree), path, "exec", dont_inherit=True)]
    except (SyntaxError, ValueError) as error:
        sys.excepthook(type(error), error.with_traceback(None), None)
        raise UserError(f"{shown} is not valid Python: {type(error).__name__}, see above") from None


def _refuse_hidden_modules(tree: ast.Module, path: str, shown: str) -> None:
    """Raise UserError where the script imports a module beside it that has the name of a package of ours."""
    for node in ast.walk(tree):
        names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
        if isinstance(node, ast.ImportFrom) and node.module and not node.level:
            names = [node.module]
        for name in {each.partition(".")[0] for each in names}.intersection(PACKAGES):
            found = importlib.machinery.PathFinder.find_spec(name, [os.path.dirname(os.path.realpath(path))])
            if found is not None and found.origin is not None and not found.origin.startswith(OUR_FOLDERS):
                raise UserError(
                    f"{shown}:{getattr(node, 'lineno', 0)} imports {found.origin}, whose name is that of a package of "
                    f"hfdt; rename it"
                )


def _main_module(path: str) -> ModuleType:
    module = ModuleType("__main__")
    loader = importlib.machinery.SourceFileLoader("__main__", path)
    module.__dict__.update(
        {"__file__": path, "__builtins__": __builtins__, "__loader__": loader, "__spec__": None, "__cached__": None}
    )
    if notebook.is_notebook(path):
        module.__dict__["display"] = print  # a builtin of kernels
    return module


def _code_of_module(name: str, main: ModuleType, rewrite: Rewrite | None) -> Sequence[CodeType]:
    """Return the code of the module `name`, and make `main` what runpy would; the packages around it are imported."""
    spec = importlib.util.find_spec(name)
    if spec is not None and spec.submodule_search_locations is not None:
        spec = importlib.util.find_spec(f"{name}.__main__")
    loader = spec.loader if spec is not None else None
    if spec is None or spec.origin is None or not isinstance(loader, importlib.machinery.SourceFileLoader):
        raise UserError(f"no module with Python source is named {name}")
    main.__dict__.update(
        {
            "__file__": spec.origin,
            "__builtins__": __builtins__,
            "__loader__": loader,
            "__spec__": spec,
            "__cached__": spec.cached,
            "__package__": spec.parent,
        }
    )
    sys.argv[0] = spec.origin
    return _compiled(loader.get_data(spec.origin), spec.origin, spec.origin, rewrite)


@contextlib.contextmanager
def _standing_in(module: ModuleType, argv: list[str], folder: str) -> Iterator[None]:
    before = sys.modules["__main__"], sys.argv, list(sys.path)
    ours = os.path.dirname(os.path.realpath(sys.argv[0])) if sys.argv else ""
    if sys.path and os.path.realpath(sys.path[0] or ".") == ours:
        del sys.path[0]  # the folder of our own command
    sys.modules["__main__"], sys.argv = module, argv
    sys.path.insert(0, folder)
    RUNNING.append(argv[0])
    try:
        yield
    finally:
        RUNNING.pop()
        sys.modules["__main__"], sys.argv, sys.path[:] = before


def _exit_code(code: object) -> int:
    if code is None:
        return 0
    if isinstance(code, int):
        return code & 0xFF
    print(code, file=sys.stderr)
    return 1


def without_our_frames(error: BaseException, seen: set[int] | None = None) -> None:
    """Remove this project's frames from the traceback of `error` and of its causes and contexts."""
    seen = set() if seen is None else seen
    if id(error) in seen:
        return
    seen.add(id(error))
    error.__traceback__ = _stripped(error.__traceback__)
    for other in (error.__cause__, error.__context__):
        if other is not None:
            without_our_frames(other, seen)


def _stripped(traceback: TracebackType | None) -> TracebackType | None:
    kept = []
    while traceback is not None:
        if not traceback.tb_frame.f_code.co_filename.startswith(OUR_FOLDERS):
            kept.append(traceback)
        traceback = traceback.tb_next
    rebuilt: TracebackType | None = None
    for frame in reversed(kept):
        rebuilt = TracebackType(rebuilt, frame.tb_frame, frame.tb_lasti, frame.tb_lineno)
    return rebuilt


def _leave(process: int, code: int) -> None:
    """Flush the streams. End a child that the script of `process` forked: the run is not its own."""
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(Exception):
            stream.flush()
    if os.getpid() != process:
        os._exit(code)
