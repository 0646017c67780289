"""Files that survive a power cut. Standard library only.

A file system may keep a new name and lose what was written under it: the file is there, and empty. So what is complete
by its name alone is brought to the disk before it gets that name.
"""

from __future__ import annotations

import errno
import os
from pathlib import Path


def to_disk(*paths: Path) -> None:
    """Flush files, and the entries of folders. Raises ``OSError``."""
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
    """Flush a folder with all that is in it. Raises ``OSError``."""
    for parent, _, files in os.walk(folder):
        to_disk(*(Path(parent, name) for name in files), Path(parent))
