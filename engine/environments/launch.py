"""Starts the process of one plugin version: scrubbed environment, its own session, its prints in a log file.

Flows in: the path to import and the folders to use. Flows out: the process and our end of its socket. What is said over
the socket is not known here.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import sys
from dataclasses import dataclass
from pathlib import Path

MEMORY_MB = 4096
"""Address space of a plugin's process; beyond it, allocations in the plugin fail."""
LARGEST_LOG = 8 << 20
_KEPT = ("PATH", "HOME", "LANG", "LC_ALL", "TZ")


@dataclass(frozen=True)
class Folders:
    """Where the processes of one plugin may write."""

    scratch: Path
    log: Path


class Launched:
    """A running process and the socket to it."""

    def __init__(self, process: asyncio.subprocess.Process, connection: socket.socket, log: Path) -> None:
        self.connection = connection
        self._process = process
        self._log = log

    @property
    def pid(self) -> int:
        """The process, and the session of all that it started."""
        return self._process.pid

    def kill(self) -> None:
        """End the process and everything in its session, now."""
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, signal.SIGKILL)

    def interrupt(self) -> None:
        """Ask the process to break out of what blocks it."""
        if self._process.returncode is None:  # os.kill, because Popen's own would take the exit status from asyncio
            with contextlib.suppress(ProcessLookupError):
                os.kill(self._process.pid, signal.SIGUSR1)

    async def wait(self) -> str:
        """Wait for the end; a sentence about it."""
        code = await self._process.wait()
        if code < 0:
            with contextlib.suppress(ValueError):
                return f"its process was ended by {signal.Signals(-code).name}"
        return f"its process ended by itself with code {code}"

    def trim_log(self) -> None:
        """Start the log again once prints have made it large."""
        with contextlib.suppress(OSError):
            if self._log.stat().st_size > LARGEST_LOG:
                os.truncate(self._log, 0)


async def launch(path: Path, folders: Folders) -> Launched:
    """Start a process that imports ``path``."""
    folders.scratch.mkdir(parents=True, exist_ok=True)
    folders.log.parent.mkdir(parents=True, exist_ok=True)
    ours, theirs = socket.socketpair()
    log = os.open(folders.log, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    try:
        command = [sys.executable, "-P", "-m", "marlaas.plugins.host"]
        process = await asyncio.create_subprocess_exec(
            *command,
            *(str(theirs.fileno()), str(path), str(MEMORY_MB), str(os.getpid())),
            pass_fds=(theirs.fileno(),),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            cwd=folders.scratch,
            env=_environment(folders.scratch),
            start_new_session=True,
        )
    except BaseException:
        ours.close()
        raise
    finally:
        os.close(log)
        theirs.close()
    return Launched(process, ours, folders.log)


def _environment(scratch: Path) -> dict[str, str]:
    kept = {name: os.environ[name] for name in _KEPT if name in os.environ}
    one_thread = dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "1")
    # The same draw gives the same episode in every process, also where a plugin iterates over a set.
    return {**kept, **one_thread, "TMPDIR": str(scratch), "PYTHONHASHSEED": "0", "PYTHONUTF8": "1"}
