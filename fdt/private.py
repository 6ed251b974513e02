"""Is a directory this user's alone?"""

import os
import stat
from pathlib import Path


def is_private(directory: Path) -> bool:
    """Whether this user made it, for nobody else to enter. A link to one is not."""
    try:
        status = directory.lstat()
    except OSError:
        return False
    return stat.S_ISDIR(status.st_mode) and status.st_uid == os.geteuid() and not status.st_mode & 0o077
