"""Finds a Python on this machine that a plugin can run on; none is ever fetched.

Marlaas's own comes first; else the oldest on the PATH that will do, because most libraries have wheels for it.
"""

from __future__ import annotations

import platform
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from packaging.specifiers import SpecifierSet
from packaging.version import InvalidVersion

_OLDEST, _NEWEST = 11, 30
"""Minor versions of Python 3 that are looked for: the author API needs 3.11."""
_PATIENCE = 10.0


class NoPython(ValueError):
    """This machine has no such Python."""


@dataclass(frozen=True)
class Python:
    """An interpreter."""

    executable: Path
    version: str
    """"3.11": what libraries are built for."""


OWN = Python(Path(sys.executable), ".".join(platform.python_version_tuple()[:2]))
"""The one that marlaas itself runs on."""


def suitable(requires: str) -> Python:
    """An interpreter for ``requires`` (PEP 440; empty takes any); raises ``NoPython``. It may start processes."""
    wanted = SpecifierSet(requires)
    if _fits(platform.python_version(), wanted):
        return OWN
    for minor in range(_OLDEST, _NEWEST):
        found = shutil.which(f"python3.{minor}")
        if found is not None and _fits(_version_of(found), wanted):
            return Python(Path(found), f"3.{minor}")
    raise NoPython(
        f"it needs Python {requires}, but marlaas runs on {platform.python_version()} and no `python3.N` on the PATH"
        " will do"
    )


def _fits(version: str, wanted: SpecifierSet) -> bool:
    try:
        return wanted.contains(version, prereleases=True)
    except InvalidVersion:  # one of somebody's own making
        return False


def _version_of(executable: str) -> str:
    code = "import platform; print(platform.python_version())"
    try:
        done = subprocess.run(
            [executable, "-I", "-c", code], capture_output=True, text=True, timeout=_PATIENCE, check=True
        )
    except (OSError, subprocess.SubprocessError):
        return ""
    return done.stdout.strip()
