"""Starts the process of one plugin version: scrubbed environment, its own session, its prints in a log file."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from ...devices import environment
from ..sizing import EPISODES, Workers
from .confinement import Confinement, inner
from .door import Door
from .pulse import Pulse
from .usage import delayed_seconds, processor_seconds

MEMORY_MB = 4096
"""Address space of a plugin's process; beyond it, allocations in the plugin fail."""
NICE = 5
"""Added to the niceness of the settings for the processes of environments, so that workers need not wait for them."""
LARGEST_LOG = 8 << 20
KEPT_LOG = 256 << 10
"""Bytes of the newest part of a log that are kept when it has become too large."""
_KEPT = ("PATH", "HOME", "LANG", "LC_ALL", "TZ")
_UNWATCHED = 0
"""Given in place of the engine's process id where bwrap is the parent: it ends what it runs when the engine dies."""


@dataclass(frozen=True)
class Runtime:
    """What the processes of one plugin version run on. The default is marlaas's own Python, not confined."""

    python: Path = Path(sys.executable)
    author_api: Path | None = None
    """Where that Python finds ``marlaas.plugins``; None where it is installed there."""
    memory_mb: int = MEMORY_MB
    confinement: Confinement | None = None
    nice: int = NICE
    workers: Workers | None = None
    """Bounds on the number of processes; None: from one up to the cores of the home."""
    episodes: int = EPISODES
    """Most live episodes of one process."""
    shared_scoring: bool = True
    """Whether other versions may be loaded into the processes that score it."""

    def workers_within(self, cores: int) -> Workers:
        """The bounds for an engine with so many cores."""
        return self.workers or Workers(1, max(1, cores))


@dataclass(frozen=True)
class Folders:
    """Where the processes of one plugin may write, and what runs them."""

    scratch: Path
    log: Path
    runtime: Runtime = Runtime()

    @property
    def lent(self) -> Path:
        """Where files lie that tasks name, and that a confined process may read."""
        return self.scratch.parent.parent / "lent" / self.scratch.name

    @classmethod
    def of(cls, scratch: Path, plugin: str) -> Folders:
        """Those of a plugin, below the scratch folder of a service."""
        return cls(scratch / "work" / plugin, scratch / "logs" / f"{plugin}.log")


class PluginProcess(Protocol):
    """A running process of a plugin, wherever it is."""

    connection: socket.socket
    """The socket to it."""
    pulse: Pulse
    log: Path
    """Where what it prints goes."""
    lost: bool
    """Whether it ended because the node did that it was on: it is not to blame."""

    @property
    def node(self) -> str:
        """The node that it is on; empty for the engine's machine."""

    @property
    def pid(self) -> int:
        """Id of the process on its node."""

    @property
    def door(self) -> Opening | None:
        """Its way to the gateway, where it cannot go there by itself."""

    def folder(self, path: Path) -> Path:
        """Where it finds the folder of the snapshot that is imported from ``path`` here."""

    async def placed(self, path: Path, scratch: Path, log: Path) -> tuple[Path, Path, Path]:
        """What is to be imported, where it may write, and its log, as it finds them."""

    async def rows(self, data: Mapping[str, Any]) -> Mapping[str, Any]:
        """``data`` that a task names, where it finds it. Raises ``OSError`` where it cannot have it."""

    def computed(self) -> float:
        """Processor seconds that it has used so far; 0 where that is not known."""

    def delayed(self) -> float:
        """Seconds that its main thread has waited for a core so far; 0 where that is not known."""

    def kill(self) -> None:
        """Kill the process and everything in its session."""

    def interrupt(self) -> None:
        """Ask the process to break out of what blocks it."""

    async def point_out(self, seconds: float) -> bool:
        """Have the thread that computes most write where it is; False where the process has ended."""

    async def wait(self) -> str:
        """Wait for the end; returns a sentence about it."""

    def trim_log(self) -> None:
        """Keep only the newest lines once prints have made the log large."""


class Opening(Protocol):
    """A way to the gateway."""

    async def open(self, url: str) -> str:
        """The name of the socket, in the process's folder, behind which the server of ``url`` is.

        Raises ``EnvironmentFailure`` where none can be made.
        """


class PluginLauncher(Protocol):
    """Starts plugins' processes on one node."""

    @property
    def node(self) -> str:
        """The node; empty for the engine's machine."""

    async def launch(self, path: Path, folders: Folders, scores: bool = False) -> PluginProcess:
        """Start a process that imports ``path``, or one that ``scores``. Raises ``OSError``."""


class Launched:
    """A running process on this machine, and the socket to it."""

    node = ""
    lost = False

    def __init__(
        self,
        process: asyncio.subprocess.Process,
        connection: socket.socket,
        pulse: Pulse,
        log: Path,
        door: Door | None = None,
        scratch: Path = Path(),
    ) -> None:
        """``door``: its way to the gateway, where it is confined; ``scratch``: the folder that it writes into."""
        self.scratch = scratch
        self.connection = connection
        self.pulse = pulse
        self._process = process
        self.log = log
        """Where what it prints goes."""
        self.door = door
        self._confined = door is not None

    @property
    def pid(self) -> int:
        """Id of the process, and of the session of all that it started."""
        return self._process.pid

    @property
    def host(self) -> int | None:
        """Id of the process that runs the plugin: inside bwrap it is another one; None while there is none."""
        if self._process.returncode is not None:
            return None
        return inner(self._process.pid) if self._confined else self._process.pid

    def folder(self, path: Path) -> Path:
        """See the protocol."""
        return path.parent

    async def placed(self, path: Path, scratch: Path, log: Path) -> tuple[Path, Path, Path]:
        """See the protocol: all is where it is."""
        return path, scratch, log

    async def rows(self, data: Mapping[str, Any]) -> Mapping[str, Any]:
        """See the protocol: all is where it is."""
        return data

    def computed(self) -> float:
        """See the protocol."""
        return processor_seconds(self.host)

    def delayed(self) -> float:
        """See the protocol."""
        return delayed_seconds(self.host)

    async def point_out(self, seconds: float) -> bool:
        """See the protocol."""
        host = self.host
        if host is not None:
            await self.pulse.point_out(host, seconds)
        return host is not None

    def kill(self) -> None:
        """Kill the process and everything in its session."""
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, signal.SIGKILL)

    def interrupt(self) -> None:
        """Ask the process to break out of what blocks it."""
        host = self.host  # not Popen's own signal, which would take the exit status from asyncio
        if host is not None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(host, signal.SIGUSR1)

    async def wait(self) -> str:
        """Wait for the end; returns a sentence about it. What is cancelled here is not waited for again."""
        try:
            code = await self._process.wait()
        finally:
            self.pulse.close()
            if self.door is not None:
                self.door.close()
        if self._confined and code > 128:  # bwrap's code for a signal
            code = 128 - code
        if code < 0:
            with contextlib.suppress(ValueError):
                return f"its process was ended by {signal.Signals(-code).name}"
        return f"its process ended by itself with code {code}"

    def trim_log(self) -> None:
        """Keep only the newest lines once prints have made the log large."""
        trim(self.log)


def trim(log: Path) -> None:
    """Keep only the newest lines of a log that has become large."""
    with contextlib.suppress(OSError):
        if log.lstat().st_size > LARGEST_LOG:
            # appends, as the plugin's processes do, who may be writing
            with open(log, "a+b", opener=open_log) as file:
                file.seek(-KEPT_LOG, os.SEEK_END)
                newest = file.read(KEPT_LOG)
                file.truncate(0)
                file.write(newest.partition(b"\n")[2] or newest)


def open_log(path: str | Path, flags: int) -> int:
    """Open a plugin's log, for this account alone. The plugin can replace it by a link, which is not followed: then
    raises ``OSError``."""
    return os.open(path, flags | os.O_NOFOLLOW, 0o600)


async def launch(path: Path, folders: Folders, scores: bool = False) -> Launched:
    """Start a process that imports ``path``; or one that ``scores``, and may be confined to what it needs for that."""
    folders.scratch.mkdir(parents=True, exist_ok=True)
    folders.log.parent.mkdir(parents=True, exist_ok=True)
    folders.lent.mkdir(parents=True, exist_ok=True)
    confined = folders.runtime.confinement is not None
    log = open_log(folders.log, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    with contextlib.ExitStack() as closing:
        closing.callback(os.close, log)
        with contextlib.ExitStack() as failing:
            ours, theirs = socket.socketpair()
            failing.callback(ours.close)
            closing.callback(theirs.close)
            asking, answering = socket.socketpair()
            failing.callback(asking.close)
            closing.callback(answering.close)
            process = await asyncio.create_subprocess_exec(
                *command(
                    path, folders, theirs.fileno(), answering.fileno(), _UNWATCHED if confined else os.getpid(), scores
                ),
                pass_fds=(theirs.fileno(), answering.fileno()),
                stdin=asyncio.subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd=folders.scratch,
                env=variables(folders),
                start_new_session=True,
            )
            failing.pop_all()
    door = Door(folders.scratch) if confined else None
    return Launched(process, ours, Pulse(asking), folders.log, door, folders.scratch)


class Here:
    """Starts plugins' processes on the engine's machine."""

    node = ""

    async def launch(self, path: Path, folders: Folders, scores: bool = False) -> PluginProcess:
        """See ``PluginLauncher``."""
        return await launch(path, folders, scores)


HERE = Here()


def command(path: Path, folders: Folders, descriptor: int, pulse: int, parent: int, scores: bool = False) -> list[str]:
    """The command line of a plugin's process; ``descriptor`` and ``pulse`` are its ends of the two sockets, ``parent``
    is whom to die with."""
    runtime = folders.runtime
    before = (
        runtime.confinement.command(path.parent, folders.scratch, folders.lent)
        if runtime.confinement is not None
        else []
    )
    host = [str(runtime.python), "-P", "-m", "marlaas.plugins.host"]
    limits = [str(runtime.memory_mb), str(parent), str(runtime.nice)]
    return [*before, *host, str(descriptor), "" if scores else str(path), *limits, str(pulse)]


def variables(folders: Folders) -> dict[str, str]:
    """All that a plugin's process sees of the engine's environment variables, and what it gets of its own.

    It sees no card: a library that it imports could take memory of one, which was not planned for. A plugin that
    computes on a card sets the variable itself.
    """
    runtime = folders.runtime
    kept = {name: os.environ[name] for name in _KEPT if name in os.environ}
    kept |= environment(())
    kept |= dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "1")
    kept["MALLOC_ARENA_MAX"] = "2"  # else every core has one, each of 64 MB of the address space that is bounded
    if runtime.author_api is not None:
        kept["PYTHONPATH"] = str(runtime.author_api)
        kept["PATH"] = os.pathsep.join((str(runtime.python.parent), kept.get("PATH", os.defpath)))
    if runtime.confinement is not None:
        kept["HOME"] = str(folders.scratch)
    # The same draw gives the same episode in every process, also where a plugin iterates over a set.
    return kept | {"TMPDIR": str(folders.scratch), "PYTHONHASHSEED": "0", "PYTHONUTF8": "1"}
