"""What a backup is: one tar file of plain files, with a list of them and their checksums at its end.

The database is compressed in it, for it shrinks to a part; state files hardly shrink and lie there as they are. Nothing
here touches a disk.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass

from marlaas.engine.errors import BackupError

FORMAT = 1
CONTENTS = "contents.json"
"""The last member, which lists the others. Without it the backup is not complete."""
DATABASE = "marlaas.db"
PACKED = ".gz"
"""Ends the name of a compressed member."""
UNSAFE = "It is not safe to restore."
LARGEST_CONTENTS = 256 << 20
MOST_FILES = 2_000_000


@dataclass(frozen=True)
class Entry:
    """A file as it is in the home."""

    size: int
    sha256: str
    mode: int = 0o600


@dataclass(frozen=True)
class Contents:
    """All that a backup holds, by the name in the home."""

    made: float
    """When it was made, in seconds since 1970."""
    program: str
    """The version of marlaas that wrote it."""
    files: dict[str, Entry]
    missing: tuple[str, ...] = ()
    """State files that the database names and the home did not have."""

    def to_bytes(self) -> bytes:
        """As the last member has it."""
        return json.dumps({"format": FORMAT} | asdict(self)).encode()


def contents(data: bytes) -> Contents:
    """The list that a backup ends with. Raises ``BackupError``."""
    try:
        table = json.loads(data)
        if table["format"] != FORMAT:
            raise BackupError(f"The backup has format {table['format']!r}; this marlaas reads format {FORMAT}.")
        files = {
            check_name(name): Entry(int(e["size"]), str(e["sha256"]), int(e["mode"]))
            for name, e in table["files"].items()
        }
        found = Contents(float(table["made"]), str(table["program"]), files, tuple(map(str, table["missing"])))
    except (AttributeError, KeyError, TypeError, ValueError, OverflowError, RecursionError) as error:
        raise BackupError("The backup's list of contents cannot be read.", "It is damaged, or no backup.") from error
    if DATABASE not in files or any(entry.size < 0 for entry in files.values()):
        raise BackupError("The backup's list of contents cannot be read.", "It is damaged, or no backup.")
    return found


def check_name(name: str) -> str:
    """A name of a file in a home, as it is: relative and plain. Raises ``BackupError`` for any other.

    It also refuses a log file of the database, which sqlite would read.
    """
    parts = name.split("/")
    if not name or "\0" in name or any(part in ("", ".", "..") for part in parts):
        raise BackupError(f"The backup holds {name!r}, which would lie outside of the home.", UNSAFE)
    if parts[0].startswith(DATABASE) and name not in (DATABASE, DATABASE + PACKED):
        raise BackupError(f"The backup holds {name!r}, which belongs into no backup.", UNSAFE)
    return name
