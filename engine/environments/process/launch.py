"""Starts the process of one plugin version, confined by bubblewrap if requested."""

from __future__ import annotations

import asyncio
import contextlib
import os
import secrets
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Iterable, Mapping, Set
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any, Literal
from urllib.parse import urlsplit
from uuid import uuid4

from marlaas.plugins.data import Source, all_files, folder_of
from marlaas.plugins.programs.forwarder import Connection, Passing

from ...devices.usable import environment
from ...errors import EnvironmentFailure
from .wire import Beat, decode_beat

_TICKS = os.sysconf("SC_CLK_TCK")


def processor_seconds(pid: int | None) -> float:
    """Used by all threads; 0: unknown."""
    if pid is None:
        return 0.0
    try:  # the program's name may hold any character
        fields = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()
        return (int(fields[11]) + int(fields[12])) / _TICKS
    except (OSError, IndexError):
        return 0.0


def delayed_seconds(pid: int | None) -> float:
    """Waits of the main thread for a core; 0: unknown."""
    if pid is None:
        return 0.0
    try:
        return int(Path(f"/proc/{pid}/schedstat").read_text().split()[1]) / 1e9
    except (OSError, IndexError, ValueError):
        return 0.0


HUNG_AFTER = 20.0
"""Processor seconds of silence of a hung process."""
PER_EPISODE = 0.05
"""Processor seconds more per episode. Threads take turns every 5 ms in no order; the answering one runs within ten
rounds, except once in 20,000 times."""
STILL_AFTER = 180.0
"""Seconds of silence without computing: the interpreter may be locked for ever. On any usable machine a thread gets a
core within minutes."""
_MOST_READ = 64 << 10
_LONGEST = 32 << 10


def judged(wall: float, computed: float, episodes: int, allowed: float = 0.0) -> Literal["", "hung", "still"]:
    """The verdict on ``wall`` and ``computed`` seconds of silence.

    A busy machine's process is not blamed. ``allowed``: seconds of its only request; 0 if it runs ``episodes``.
    """
    if computed >= max(HUNG_AFTER, 2 * allowed) + PER_EPISODE * episodes:
        return "hung"
    return "still" if wall >= max(STILL_AFTER, 10 * allowed) else ""


class Pulse:
    """The engine's end of the watchdog's connection; untrusted input."""

    def __init__(self, connection: socket.socket) -> None:
        connection.setblocking(False)
        self.connection = connection
        self._rest = b""

    def ask(self) -> None:
        with contextlib.suppress(OSError):
            self.connection.send(b"?")

    def answer(self) -> Beat | None:
        try:
            lines = (self._rest + self.connection.recv(_MOST_READ)).split(b"\n")
        except OSError:
            return None
        self._rest = lines.pop()[-_LONGEST:]
        return next(filter(None, map(decode_beat, reversed(lines[-10:]))), None)

    def close(self) -> None:
        self.connection.close()


# A confined process sees only what exists at its start: the engine links a task's files into one more read-only folder.


def lend(data: Mapping[str, Any], folder: Path) -> dict[str, Any]:
    """Link the files of ``data`` (``Source.record``) into ``folder``; returns ``data`` with that path.

    Raises ``OSError``.
    """
    source = Source.of(data)
    root = folder_of(source)
    own = folder / sha256(str(source.path).encode()).hexdigest()[:16]
    for path in all_files(source):
        lent = own / path.relative_to(root)
        if not _same(path, lent):
            _place(path, lent)
    return dict(data) | {"path": str(own / source.path.relative_to(root))}


def stamped(data: Mapping[str, Any]) -> dict[str, Any]:
    """``data`` with a ``stamp``: processes read the rows again if it changes. Raises ``OSError``."""
    stats = [(str(path), path.stat()) for path in all_files(Source.of(data))]
    content = [(path, stat.st_ino, stat.st_size, stat.st_mtime_ns) for path, stat in stats]
    return dict(data) | {"stamp": sha256(repr(content).encode()).hexdigest()[:16]}


def _place(path: Path, lent: Path) -> None:
    lent.parent.mkdir(parents=True, exist_ok=True)
    fresh = lent.with_name(f"{lent.name}.{uuid4().hex}")
    try:
        try:
            os.link(path.resolve(), fresh)  # of a symbolic link its file: the process sees no other folder
        except OSError:
            shutil.copy2(path, fresh)
        os.replace(fresh, lent)
    finally:
        fresh.unlink(missing_ok=True)  # it stays if both names are links to one file already


def _same(path: Path, lent: Path) -> bool:
    try:
        there, here = path.stat(), lent.stat()
    except FileNotFoundError:
        return False
    return os.path.samestat(there, here) or (there.st_size, there.st_mtime_ns) == (here.st_size, here.st_mtime_ns)


# The gateway for a process without a network: see ``plugins.programs.forwarder``.


class Door:
    """One socket in a folder."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._name = f"gateway-{secrets.token_hex(4)}.sock"
        self._address = ("", 0)
        self._passing = Passing(self._connect)
        self._server: asyncio.Server | None = None
        self._opening = asyncio.Lock()

    async def open(self, url: str) -> str:
        """The socket's name, for ``url``'s server. Raises ``EnvironmentFailure``."""
        where = urlsplit(url)
        self._address = (where.hostname or "", where.port or 0)
        async with self._opening:
            if self._server is None:
                try:
                    self._server = await asyncio.start_unix_server(self._passing.accept, sock=self._bound())
                except OSError as error:
                    raise EnvironmentFailure(
                        f"No socket to the gateway can be made in {self._folder}: {error}"
                    ) from error
        return self._name

    def close(self) -> None:
        self._passing.close()
        if self._server is not None:
            self._server.close()
            self._server = None
            with contextlib.suppress(OSError):
                (self._folder / self._name).unlink()

    async def _connect(self) -> Connection:
        return await asyncio.open_connection(*self._address)

    def _bound(self) -> socket.socket:
        """Bound over a descriptor, because a socket's path has at most 108 characters."""
        folder = os.open(self._folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            listening = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            try:
                listening.bind(f"/proc/self/fd/{folder}/{self._name}")
            except OSError:
                listening.close()
                raise
            return listening
        finally:
            os.close(folder)


# No network, files read-only, home folders hidden.
#
# The kernel's namespaces are the boundary; processor and memory are not limited.

_HIDDEN = tuple(Path(name) for name in ("/home", "/root", "/tmp", "/var/tmp", "/run"))
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
"""One process outside waits, one inside reaps orphans."""
_PATIENCE = 10.0
_OF_PYTHON = ("bin", "lib", "lib64")
_MOST_LINKS = 40


@dataclass(frozen=True)
class Confinement:
    """What one plugin's process may see."""

    hidden: tuple[Path, ...]
    readable: tuple[Path, ...]

    def command(self, snapshot: Path, scratch: Path, *read: Path) -> list[str]:
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
        both = sorted(_hidden(self.hidden) & {path.resolve() for path in self.readable if path.exists()})
        return f"Python's own files lie in {both[0]}, which is to be out of sight: choose another home" if both else ""


def _hidden(folders: Iterable[Path]) -> set[Path]:
    return {folder.resolve() for folder in (*_HIDDEN, Path.home(), *folders) if folder.is_dir()} - {Path("/")}


def layers(hidden: Set[Path], shown: Set[Path]) -> list[Path]:
    """Folders to mount, each over those before it: a path's innermost one decides."""
    marks: set[Path] = set()
    for path in sorted(hidden | shown, key=lambda path: (len(path.parts), path)):
        if (path in hidden) != (_decides(path, marks) in hidden):
            marks.add(path)
    return sorted(marks, key=lambda path: (len(path.parts), path))


def _decides(path: Path, marks: Set[Path]) -> Path | None:
    return next((folder for folder in (path, *path.parents) if folder in marks), None)


def links(path: Path) -> list[tuple[Path, str]]:
    """Symbolic links on the way to a path, with targets."""
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
    """An interpreter's installation paths and, for a virtual environment, its base's.

    Never their parents: ``~/.local`` also holds other files.
    """
    own, base = python.absolute().parent.parent, python.resolve().parent.parent
    environment = [own / name for name in (*_OF_PYTHON, "pyvenv.cfg")] if (own / "pyvenv.cfg").exists() else []
    return (python, *environment, *(base / name for name in _OF_PYTHON))


def inner(pid: int) -> int | None:
    """Id of the process that bwrap ``pid`` runs."""
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
    """Why this machine cannot confine a process; empty: it can."""
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


EPISODES = 512
"""Live episodes of one process: twice those of one task."""
MEMORY_MB = 4096
"""Beyond it, allocations in the plugin fail."""
NICE = 5
"""Added to the settings' niceness, so that workers need not wait."""
LARGEST_LOG = 8 << 20
KEPT_LOG = 256 << 10
_KEPT = ("PATH", "HOME", "LANG", "LC_ALL", "TZ", "XDG_RUNTIME_DIR", "CONTAINER_HOST", "DOCKER_HOST")
_UNWATCHED = 0


@dataclass(frozen=True)
class Workers:
    """Bounds on a version's processes of each kind."""

    least: int = 1
    most: int = 1


@dataclass(frozen=True)
class Runtime:
    """Default: marlaas's own Python, not confined."""

    python: Path = Path(sys.executable)
    author_api: Path | None = None
    memory_mb: int = MEMORY_MB
    confinement: Confinement | None = None
    nice: int = NICE
    workers: Workers | None = None
    episodes: int = EPISODES


@dataclass(frozen=True)
class Folders:
    """One plugin's folders and runtime."""

    scratch: Path
    log: Path
    runtime: Runtime = Runtime()

    @property
    def lent(self) -> Path:
        return self.scratch.parent.parent / "lent" / self.scratch.name

    @classmethod
    def of(cls, scratch: Path, plugin: str) -> Folders:
        return cls(scratch / "work" / plugin, scratch / "logs" / f"{plugin}.log")


class Launched:
    """A process and its socket."""

    def __init__(
        self,
        process: asyncio.subprocess.Process,
        connection: socket.socket,
        pulse: Pulse,
        log: Path,
        door: Door | None = None,
    ) -> None:
        self.connection = connection
        self.pulse = pulse
        self._process = process
        self.log = log
        self.door = door
        """The way to the gateway of a confined process."""

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def host(self) -> int | None:
        if self._process.returncode is not None:
            return None
        return inner(self._process.pid) if self.door else self._process.pid

    def computed(self) -> float:
        return processor_seconds(self.host)

    def delayed(self) -> float:
        return delayed_seconds(self.host)

    def kill(self) -> None:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, signal.SIGKILL)

    def interrupt(self) -> None:
        host = self.host  # not Popen's own signal, which would take the exit status from asyncio
        if host is not None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(host, signal.SIGUSR1)

    async def wait(self) -> str:
        try:
            code = await self._process.wait()
        finally:
            self.pulse.close()
            if self.door:
                self.door.close()
        if self.door and code > 128:
            code = 128 - code
        if code < 0:
            with contextlib.suppress(ValueError):
                return f"its process was ended by {signal.Signals(-code).name}"
        return f"its process ended by itself with code {code}"

    def trim_log(self) -> None:
        trim(self.log)


def trim(log: Path) -> None:
    """Keep only the newest lines of a large log."""
    with contextlib.suppress(OSError):
        if log.lstat().st_size > LARGEST_LOG:
            # appends, as the plugin's processes may at the same time
            with open(log, "a+b", opener=open_log) as file:
                file.seek(-KEPT_LOG, os.SEEK_END)
                newest = file.read(KEPT_LOG)
                file.truncate(0)
                file.write(newest.partition(b"\n")[2] or newest)


def open_log(path: str | Path, flags: int) -> int:
    """Open a plugin's log, readable only by this account.

    Raises ``OSError`` for a link, perhaps the plugin's.
    """
    return os.open(path, flags | os.O_NOFOLLOW, 0o600)


async def launch(path: Path, folders: Folders) -> Launched:
    """Start a process that imports ``path``. Raises ``OSError``."""
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
                *command(path, folders, theirs.fileno(), answering.fileno(), _UNWATCHED if confined else os.getpid()),
                pass_fds=(theirs.fileno(), answering.fileno()),
                stdin=asyncio.subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd=folders.scratch,
                env=variables(folders),
                start_new_session=True,
            )
            failing.pop_all()
    return Launched(process, ours, Pulse(asking), folders.log, Door(folders.scratch) if confined else None)


def command(path: Path, folders: Folders, descriptor: int, pulse: int, parent: int) -> list[str]:
    """``descriptor``, ``pulse``: its ends of the two sockets. It dies with ``parent``."""
    runtime = folders.runtime
    before = (
        runtime.confinement.command(path.parent, folders.scratch, folders.lent)
        if runtime.confinement is not None
        else []
    )
    host = [str(runtime.python), "-P", "-m", "marlaas.plugins.host"]
    limits = [str(runtime.memory_mb), str(parent), str(runtime.nice)]
    return [*before, *host, str(descriptor), str(path), *limits, str(pulse)]


def variables(folders: Folders) -> dict[str, str]:
    """A plugin's environment variables, without GPUs: a library could take unplanned memory of one."""
    runtime = folders.runtime
    kept = {name: os.environ[name] for name in _KEPT if name in os.environ}
    kept |= environment(())
    kept |= dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "1")
    kept["MALLOC_ARENA_MAX"] = "2"  # else every core has one, each of 64 MB of the bounded address space
    if runtime.author_api is not None:
        kept["PYTHONPATH"] = str(runtime.author_api)
        kept["PATH"] = os.pathsep.join((str(runtime.python.parent), kept.get("PATH", os.defpath)))
    if runtime.confinement is not None:
        kept["HOME"] = str(folders.scratch)
    # Equal draws give equal episodes, even if a plugin iterates over a set.
    return kept | {"TMPDIR": str(folders.scratch), "PYTHONHASHSEED": "0", "PYTHONUTF8": "1"}
