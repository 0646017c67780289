"""A plugin's process behind bubblewrap: no network, files read-only, home folders hidden.

The kernel keeps this boundary, with namespaces of its own for users, processes, mounts and the network. It is as strong
as they are: it does not keep a plugin from using the processor and the memory that it is given.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterable, Set
from dataclasses import dataclass
from pathlib import Path

_HIDDEN = tuple(Path(name) for name in ("/home", "/root", "/tmp", "/var/tmp", "/run"))
"""Folders with people's files, and with the sockets of services."""
_BASE = (
    "--die-with-parent",
    "--unshare-all",
    "--cap-drop",
    "ALL",
    "--ro-bind",
    "/",
    "/",
    "--dev",
    "/dev",
    "--proc",
    "/proc",
)
_LAYERS = 2
"""bwrap's processes around the one that it runs: one outside that waits, one inside that reaps orphans."""
_PATIENCE = 10.0
_OF_PYTHON = ("bin", "lib", "lib64")
_MOST_LINKS = 40
"""Most symbolic links that are followed for one path, as in the kernel."""


@dataclass(frozen=True)
class Confinement:
    """What one plugin's process may see."""

    hidden: tuple[Path, ...]
    """Folders that appear empty, besides the usual ones."""
    readable: tuple[Path, ...]
    """Folders and files that stay visible although they lie in hidden ones."""

    def command(self, snapshot: Path, scratch: Path, *read: Path) -> list[str]:
        """The words to put before the process's own command; only ``scratch`` can be written, and ``read`` be read."""
        needed = [path for path in (*self.readable, snapshot, *read) if path.exists()]
        hidden, shown = _hidden(self.hidden), {path.resolve() for path in needed}
        words = [shutil.which("bwrap") or "bwrap", *_BASE]
        for folder in layers(hidden, shown):
            words += ["--tmpfs", str(folder)] if folder in hidden else ["--ro-bind", str(folder), str(folder)]
        real = scratch.resolve()
        for link, target in dict(hop for path in (*needed, scratch) for hop in links(path)).items():
            if _decides(link, hidden | shown | {real}) in hidden:
                words += ["--symlink", target, str(link)]
        return [*words, "--bind", str(real), str(real), "--chdir", str(scratch), "--"]

    def contradiction(self) -> str:
        """Why this cannot be done, in a sentence: a folder cannot be both hidden and readable; empty where it can."""
        both = sorted(_hidden(self.hidden) & {path.resolve() for path in self.readable if path.exists()})
        return f"Python's own files lie in {both[0]}, which is to be out of sight: choose another home" if both else ""


def _hidden(folders: Iterable[Path]) -> set[Path]:
    """The usual hidden folders and ``folders``, as far as they exist, with links followed."""
    return {folder.resolve() for folder in (*_HIDDEN, Path.home(), *folders) if folder.is_dir()} - {Path("/")}


def layers(hidden: Set[Path], shown: Set[Path]) -> list[Path]:
    """The folders to mount, each over the ones before it: the innermost that a path is in decides.

    So a home inside a Python's folder stays hidden, and a virtual environment inside that home is visible.
    """
    marks: set[Path] = set()
    for path in sorted(hidden | shown, key=lambda path: (len(path.parts), path)):
        if (path in hidden) != (_decides(path, marks) in hidden):
            marks.add(path)
    return sorted(marks, key=lambda path: (len(path.parts), path))


def _decides(path: Path, marks: Set[Path]) -> Path | None:
    """The innermost of ``marks`` that a path is in."""
    return next((folder for folder in (path, *path.parents) if folder in marks), None)


def links(path: Path) -> list[tuple[Path, str]]:
    """The symbolic links that are followed on the way to a path, each with its target."""
    found: list[tuple[Path, str]] = []
    at, left = Path("/"), [*reversed(path.absolute().parts)]
    while left and len(found) < _MOST_LINKS:
        part = left.pop()
        at = at.parent if part == ".." else at / part  # an absolute part starts at the root
        if at.is_symlink():
            found.append((at, os.readlink(at)))
            left += reversed(Path(found[-1][1]).parts)
            at = at.parent
    return found


def readable_for(python: Path) -> tuple[Path, ...]:
    """The paths that an interpreter reads of its installation and, for a virtual environment, of the one below it.

    Never the folder that these are in: its owner's other files may lie there, as in ``~/.local``.
    """
    own, base = python.absolute().parent.parent, python.resolve().parent.parent
    environment = [own / name for name in (*_OF_PYTHON, "pyvenv.cfg")] if (own / "pyvenv.cfg").exists() else []
    return (python, *environment, *(base / name for name in _OF_PYTHON))


def inner(pid: int) -> int | None:
    """Id of the process that bwrap, which is ``pid``, runs; None before it starts and after it ends."""
    for _ in range(_LAYERS):
        try:
            children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
        except OSError:
            return None
        if not children:
            return None
        pid = int(children[0])
    return pid


def obstacle() -> str:
    """Why no process can be confined on this machine; empty where it can. Finds out by trying."""
    bwrap = shutil.which("bwrap")
    if bwrap is None:
        return "bwrap (bubblewrap) is not installed"
    try:
        done = subprocess.run(
            [bwrap, *_BASE, "--", "true"],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_PATIENCE,
            env={"PATH": os.environ.get("PATH", os.defpath)},
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"bwrap does not run: {error}"
    if done.returncode == 0:
        return ""
    return " ".join(done.stderr.split())[:200] or f"bwrap ended with code {done.returncode}"
