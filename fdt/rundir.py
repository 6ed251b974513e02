"""The directory of a run with --run-dir: the data from which `--resume` continues the run, and its checkpoint files.

    run.json              the command line, the script's digest, the seed       .lock     locked while the run continues
    fit-0001-done.ckpt    the first `fit`, finished                             records.jsonl, *.log    as in --log-dir
    fit-0002-epoch-00007.ckpt    the second, after seven epochs; the one before it is kept, too

A user who can write here decides what a resumed run trains, so the directory must be the user's own.

A checkpoint is one file, either complete or absent; damage is detected when it is read. Nothing in it is pickled, so
reading it runs no code from it. Its digest covers all bytes before it, and its header has the file's name, so that no
other checkpoint can take its place:

    8 bytes "FDTCKPT1" | 8 bytes, little endian: length of the header | header, JSON | packed arrays | 32 bytes BLAKE2b
"""

import contextlib
import fcntl
import hashlib
import json
import os
import secrets
import struct
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from fdt import tensors
from fdt.cli import file_of
from fdt.errors import UserError
from fdt.security import check_directory, check_ours, read_ours, replacing
from fdt.typing import Array

FILE, LOCK = "run.json", ".lock"
CHECKSUM = "checksum"  # an entry of run.json
CHECKPOINTS = "fit-*.ckpt"
PARTS = (".fit-*.ckpt.*.part", f".{FILE}.*.part")  # temporary files of a process that was killed while writing
KEPT = 2  # checkpoints of an unfinished fit
NAME = "file"  # an entry of a checkpoint's header
MAGIC = b"FDTCKPT1"
DIGEST_BYTES = 32
_LENGTH = struct.Struct("<Q")

Checkpoint = tuple[dict[str, Any], list[Array]]
Check = Callable[[dict[str, Any], list[Array]], object]
# What reading a header raises that another program wrote.
MALFORMED = (LookupError, TypeError, ValueError, AttributeError, ArithmeticError, RecursionError)


@dataclass(frozen=True)
class Arguments:
    """The command line that started the run.

    Attributes:
        engine: The engine's name.
        ours: The command's options.
        script: The script's path.
        words: The script's arguments.
        folder: The working directory.
        digest: The script's SHA-256, to detect a change.
        seed: The seed of the script's random numbers, where it sets none.
    """

    engine: str
    ours: list[str]
    script: str
    words: list[str]
    folder: str
    digest: str
    seed: int


class RunDir:
    """The directory of a run that is under way. `resumed`: an earlier process began the run."""

    def __init__(self, directory: Path, arguments: Arguments, lock: int, *, resumed: bool) -> None:
        self.directory, self.arguments, self.resumed = directory, arguments, resumed
        self._lock = lock

    @classmethod
    def create(
        cls, directory: Path, engine: str, ours: Sequence[str], script: str, script_args: Sequence[str]
    ) -> "RunDir":
        """Create a new run's directory. Raises UserError if it cannot be written or has another, unfinished run."""
        try:
            directory.mkdir(mode=0o700, parents=True, exist_ok=True)
            check_directory(directory, "--run-dir")
            check_ours(directory, "--run-dir")
        except OSError as error:
            raise UserError(f"--run-dir cannot be written: {error}") from None
        lock = _locked(directory)
        if (directory / FILE).exists() and any(directory.glob(CHECKPOINTS)):
            os.close(lock)
            raise UserError(
                f"--run-dir must be new. Received: {directory}, which holds a run that has not ended; "
                f"`{engine} run --resume {directory}` continues it, `rm -r {directory}` deletes it"
            )
        _sweep(directory)
        try:
            digest, seed = digest_of(file_of(script)), secrets.randbits(31)
            arguments = Arguments(engine, list(ours), script, list(script_args), os.getcwd(), digest, seed)
            fields = asdict(arguments)
            replace_file(directory / FILE, [json.dumps({**fields, CHECKSUM: _checksum(fields)}, indent=1).encode()])
        except OSError as error:
            os.close(lock)
            raise UserError(
                f"--run-dir needs the script, the working directory and a directory that can be written: {error}"
            ) from None
        return cls(directory.resolve(), arguments, lock, resumed=False)

    @classmethod
    def open(cls, directory: Path, engine: str) -> "RunDir":
        """Open an unfinished run of `engine`. Raises UserError where there is none, or where it still runs."""
        arguments, lock = read_arguments(directory, engine), _locked(directory)
        _sweep(directory)
        return cls(directory.resolve(), arguments, lock, resumed=True)

    def close(self, *, ended_well: bool, keep: bool = False) -> None:
        """Unlock the directory. If the run ended well, or has no checkpoint and is not to be kept, remove its files."""
        _sweep(self.directory)
        if ended_well or not (keep or self.begun):
            for file in (*self.directory.glob(CHECKPOINTS), self.directory / FILE, self.directory / LOCK):
                file.unlink(missing_ok=True)
        os.close(self._lock)

    @property
    def begun(self) -> bool:
        """Whether there is a checkpoint."""
        return any(self.directory.glob(CHECKPOINTS))

    # -- checkpoints: `epoch` counts finished epochs ---------------------------------------------------------------
    def save(self, fit: int, epoch: int, header: dict[str, Any], arrays: Sequence[Array]) -> None:
        """Save a checkpoint after `epoch` epochs. Raises OSError; then the old ones remain."""
        write_checkpoint(self._file(fit, f"epoch-{epoch:05}"), header, arrays)
        for old in self._epochs(fit)[KEPT:]:
            old.unlink(missing_ok=True)

    def save_step(self, fit: int, header: dict[str, Any], arrays: Sequence[Array]) -> None:
        """Save a checkpoint within the epoch after the last checkpoint. Raises OSError; then the old one remains."""
        write_checkpoint(self._file(fit, "step"), header, arrays)

    def finish(self, fit: int, header: dict[str, Any], arrays: Sequence[Array]) -> None:
        """Save a `fit` that has ended. Raises OSError."""
        write_checkpoint(self._file(fit, "done"), header, arrays)
        for old in (*self._epochs(fit), self._file(fit, "step")):
            old.unlink(missing_ok=True)

    def load(self, fit: int, check: Check = lambda header, arrays: None) -> tuple[Checkpoint | None, list[str]]:
        """Return the last complete checkpoint of a `fit`, or None, and messages about damaged ones.

        `check` raises one of MALFORMED for a header and arrays that are no checkpoint of a `fit`.
        """
        return self._first_whole(check, self._file(fit, "done"), *self._epochs(fit))

    def load_step(self, fit: int, check: Check = lambda header, arrays: None) -> tuple[Checkpoint | None, list[str]]:
        """Return the checkpoint of `save_step`, as `load` does."""
        return self._first_whole(check, self._file(fit, "step"))

    def _first_whole(self, check: Check, *files: Path) -> tuple[Checkpoint | None, list[str]]:
        warnings: list[str] = []
        for file in files:
            try:
                header, arrays = read_checkpoint(file, lambda path: read_ours(path, "a checkpoint"))
                check(header, arrays)
                return (header, arrays), warnings
            except FileNotFoundError:
                continue
            except MALFORMED as error:
                reason = f"{type(error).__name__} {error}"
                warnings.append(
                    f"{file.name} is no checkpoint of a fit: {reason}. An earlier one is used, if there is one"
                )
            except (Damaged, OSError) as error:
                warnings.append(f"{file.name} is damaged: {error}. An earlier checkpoint is used, if there is one")
        return None, warnings

    def _file(self, fit: int, what: str) -> Path:
        return self.directory / f"fit-{fit:04}-{what}.ckpt"

    def _epochs(self, fit: int) -> list[Path]:
        """Return the checkpoints of an unfinished `fit`, the last first."""
        return sorted(self.directory.glob(f"fit-{fit:04}-epoch-*.ckpt"), key=_epoch_of, reverse=True)


def read_arguments(directory: Path, engine: str) -> Arguments:
    """Return the arguments of the run in `directory`. Raises UserError where there is none of `engine`."""
    try:
        check_directory(directory, "--resume")
        check_ours(directory, "--resume")
        fields = json.loads(read_ours(directory / FILE, "--resume"))
        checksum = fields.pop(CHECKSUM, "")
        arguments = Arguments(**fields)
        if checksum != _checksum(fields):
            raise ValueError("its checksum is wrong")
    except FileNotFoundError:
        raise UserError(
            f"--resume needs the directory of a run that has not ended, made by --run-dir. Received: {directory}"
        ) from None
    except (OSError, ValueError, TypeError, AttributeError, RecursionError) as error:
        raise UserError(f"--resume needs the directory of a run; {directory / FILE} cannot be read: {error}") from None
    if arguments.engine != engine:
        raise UserError(f"the run in {directory} is {arguments.engine}'s; use `{arguments.engine} run --resume`")
    return arguments


def _checksum(fields: dict[str, Any]) -> str:
    return hashlib.blake2b(json.dumps(fields, sort_keys=True).encode(), digest_size=DIGEST_BYTES).hexdigest()


def _epoch_of(checkpoint: Path) -> int:
    """Return the epoch in the file's name, which may have more than five digits; -1 for another file."""
    digits = checkpoint.stem.rpartition("-")[2]
    return int(digits) if digits.isdecimal() else -1


def digest_of(script: Path) -> str:
    """Return the SHA-256 of a script, in hexadecimal."""
    return hashlib.sha256(script.read_bytes()).hexdigest()


def _sweep(directory: Path) -> None:
    """Remove temporary files. The caller holds the lock, so no other process writes them."""
    for part in (part for pattern in PARTS for part in directory.glob(pattern)):
        with contextlib.suppress(OSError):
            part.unlink()


def _locked(directory: Path) -> int:
    """Lock the directory. Raises UserError when another process has locked it, or it cannot be written."""
    try:
        lock = os.open(directory / LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    except OSError as error:
        raise UserError(f"the run's directory cannot be written: {error}") from None
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(lock)
        raise UserError(f"the run in {directory} has not ended: a process uses it") from None
    except OSError:
        pass  # a file system without locks
    return lock


class Damaged(Exception):
    """The file is not a complete checkpoint; the message states the reason."""


def write_checkpoint(path: Path, header: dict[str, Any], arrays: Sequence[Array]) -> None:
    """Write a checkpoint atomically: to a temporary file, synced to disk, then renamed. Raises OSError.

    A reader finds the old file or the new one. After an error the temporary file is removed.
    """
    text = json.dumps({**header, NAME: path.name}).encode()
    replace_file(path, (MAGIC, _LENGTH.pack(len(text)), text, tensors.pack(arrays)), digest=True)


def replace_file(path: Path, parts: Sequence[bytes | bytearray], *, digest: bool = False) -> None:
    """Replace `path` by a file of `parts`, and their digest, readable to the user alone. Raises OSError."""
    with replacing(path) as aside, open(aside, "xb", opener=lambda name, flags: os.open(name, flags, 0o600)) as file:
        sum_ = hashlib.blake2b(digest_size=DIGEST_BYTES)
        for part in parts:
            file.write(part)
            sum_.update(part)
        if digest:
            file.write(sum_.digest())
        file.flush()
        os.fsync(file.fileno())
    with contextlib.suppress(OSError):  # so that the rename survives a power failure; some file systems have no sync
        held = os.open(path.parent, os.O_RDONLY)
        try:
            os.fsync(held)
        finally:
            os.close(held)


def read_checkpoint(path: Path, read: Callable[[Path], bytes] = Path.read_bytes) -> tuple[dict[str, Any], list[Array]]:
    """Return (header, arrays) of what `read` returns. Raises Damaged, OSError."""
    data = memoryview(read(path))
    body, digest = data[:-DIGEST_BYTES], data[-DIGEST_BYTES:]
    if data[: len(MAGIC)] != MAGIC:
        raise Damaged("it does not begin like a checkpoint")
    if hashlib.blake2b(body, digest_size=DIGEST_BYTES).digest() != digest:
        raise Damaged(f"the checksum of its {len(data):,} bytes is wrong")
    start = len(MAGIC) + _LENGTH.size
    (length,) = _LENGTH.unpack_from(data, len(MAGIC))
    try:
        header, arrays = json.loads(bytes(body[start : start + length])), tensors.unpack(body[start + length :])
    except (ValueError, RecursionError) as error:
        raise Damaged(str(error)) from None
    if not isinstance(header, dict):
        raise Damaged("its header is no JSON object")
    if (name := header.pop(NAME, path.name)) != path.name:
        raise Damaged(f"it is {name} under another name")
    return header, arrays
