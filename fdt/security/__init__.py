"""Security between processes and users: tokens, certificates, TLS, private directories."""

import os
import stat
from pathlib import Path


def is_private(directory: Path) -> bool:
    """Return whether this user owns the directory and no other user can enter it; False for a symbolic link."""
    try:
        status = directory.lstat()
    except OSError:
        return False
    return stat.S_ISDIR(status.st_mode) and status.st_uid == os.geteuid() and not status.st_mode & 0o077
