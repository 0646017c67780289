"""Files that survive a power cut. Standard library only.

File systems may keep a new name and lose its content: flush content before naming it.
"""

from __future__ import annotations

import errno
import os
from pathlib import Path


def to_disk(*paths: Path) -> None:
    """Flush files and folders' entries. Raises ``OSError``."""
    for path in paths:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            os.fsync(descriptor)
        except OSError as error:
            if error.errno not in (errno.EINVAL, errno.ENOTSUP):  # file systems that cannot do so for folders
                raise
        finally:
            os.close(descriptor)


def tree_to_disk(folder: Path) -> None:
    """Flush a folder's tree. Raises ``OSError``."""
    for parent, _, files in os.walk(folder):
        to_disk(*(Path(parent, name) for name in files), Path(parent))
