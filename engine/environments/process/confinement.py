"""A plugin's process behind bubblewrap: no network, files read-only, homes out of sight. Pure but for ``obstacle``.

Flows in: what is to be hidden and what has to be readable all the same. Flows out: the command that goes before the
process's own. What runs behind it is not known here.

The kernel keeps this boundary, with namespaces of its own for users, processes, mounts and the network. It is as strong
as they are: it does not keep a plugin from using the processor and the memory that it is given.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

_HIDDEN = tuple(Path(name) for name in ("/home", "/root", "/tmp", "/var/tmp", "/run"))
"""Where people keep what is theirs, and where services listen."""
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
"""bwrap's processes around the one that it runs: one outside that waits, one inside that buries orphans."""
_PATIENCE = 10.0


@dataclass(frozen=True)
class Confinement:
    """What one plugin's process may see."""

    hidden: tuple[Path, ...]
    """Folders that appear empty, besides the usual ones."""
    readable: tuple[Path, ...]
    """Folders that stay visible although they lie in hidden ones."""

    def command(self, snapshot: Path, scratch: Path) -> list[str]:
        """What goes before the process's own command; only ``scratch`` can be written."""
        hidden = _outermost((*_HIDDEN, Path.home(), *self.hidden))
        words = [shutil.which("bwrap") or "bwrap", *_BASE]
        for folder in hidden:
            words += ["--tmpfs", str(folder)]
        for folder in (path.resolve() for path in (*self.readable, snapshot) if path.is_dir()):
            if any(folder.is_relative_to(above) for above in hidden):
                words += ["--ro-bind", str(folder), str(folder)]
        return [*words, "--bind", str(scratch), str(scratch), "--chdir", str(scratch), "--"]


def _outermost(folders: Sequence[Path]) -> list[Path]:
    """Those that exist, each once, links followed, without those that lie in another one."""
    real = sorted({folder.resolve() for folder in folders if folder.is_dir()} - {Path("/")})
    return [folder for folder in real if not any(other in folder.parents for other in real)]


def readable_for(python: Path) -> tuple[Path, ...]:
    """What an interpreter reads of its own installation, and of the one that it is a virtual environment of."""
    base = python.resolve().parent.parent
    return (python.absolute().parent.parent, base / "bin", base / "lib")


def inner(pid: int) -> int | None:
    """The process that bwrap, which is ``pid``, runs; None where it does not run yet or no more."""
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
    """Why no process can be confined on this machine; empty where it can. Tries it."""
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
