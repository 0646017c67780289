"""The virtual environment of one set of libraries, the Python that it is made with, and what all of them take."""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from packaging.specifiers import SpecifierSet
from packaging.version import InvalidVersion

from .requirements import Requirements

# Finds a Python on this machine that a plugin can run on; none is ever fetched.
#
# Marlaas's own comes first; else the oldest on the PATH that will do, because most libraries have wheels for it.

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


# The virtual environment of one set of libraries: where it lies, whether it may be built, whether it is.
#
# All of it is files, so that the engine and the command line agree without talking: a file ``KEY.allowed`` is a
# person's consent to the list that it holds, a file ``complete`` in the folder says that the build of the list in it
# came to its end. A folder without it is nothing.

_COMPLETE = "complete"

Stamp = tuple[bool, int]
"""Whether it is built, and when the consent was given."""


@dataclass(frozen=True)
class Venv:
    """A set of libraries for one Python, on the disk or yet to be."""

    folder: Path
    """Named by the key of the set. It is built where it stays: what is installed holds its path."""
    dependencies: tuple[str, ...]
    base: Python = OWN

    @classmethod
    def of(cls, requirements: Requirements, base: Python, folder: Path) -> Venv:
        """The one that a plugin needs, below the folder of them all."""
        return cls(folder / requirements.key(base.version), requirements.dependencies, base)

    @property
    def python(self) -> Path:
        """The interpreter that has the libraries."""
        return self.folder / "bin" / "python"

    @property
    def log(self) -> Path:
        """What the last build said."""
        return self.folder.with_suffix(".log")

    @property
    def lock(self) -> Path:
        """Held by whoever builds, of all sets of a home one at a time."""
        return self.folder.parent / "lock"

    @property
    def built(self) -> bool:
        """Whether it is complete, and the Python below it is still there."""
        return _holds(self._complete, self.dependencies) and self.python.exists()

    @property
    def allowed(self) -> bool:
        """Whether a person has consented to this very list, or it is empty."""
        return not self.dependencies or _holds(self._consent, self.dependencies)

    def allow(self) -> None:
        """Remember a person's consent; giving it again asks for another try of a build that failed."""
        self.folder.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        _write(self._consent, self.dependencies)

    def clear(self) -> None:
        """Remove what is there; the sign that it is whole goes first."""
        self._complete.unlink(missing_ok=True)
        shutil.rmtree(self.folder, ignore_errors=True)

    def finish(self) -> None:
        """The build has come to its end; a power cut leaves no half one that is called complete."""
        os.sync()
        _write(self._complete, self.dependencies)

    def stamp(self) -> Stamp:
        """A value that changes with a consent and with a build; cheap to ask for."""
        try:
            return self.built, self._consent.stat().st_mtime_ns
        except FileNotFoundError:
            return self.built, 0

    @property
    def _complete(self) -> Path:
        return self.folder / _COMPLETE

    @property
    def _consent(self) -> Path:
        return self.folder.with_suffix(".allowed")


def _write(path: Path, lines: tuple[str, ...]) -> None:
    """Write a whole file or nothing, whenever the process is killed."""
    unfinished = path.with_name(f".{path.name}.{os.getpid()}")
    unfinished.write_text(_text(lines), encoding="utf-8")
    unfinished.replace(path)


def _holds(path: Path, lines: tuple[str, ...]) -> bool:
    """Whether a file says this; its name says too little, because two lists can be made that share a key."""
    try:
        return path.read_bytes() == _text(lines).encode()
    except OSError:
        return False


def _text(lines: tuple[str, ...]) -> str:
    return "".join(f"{line}\n" for line in lines)
