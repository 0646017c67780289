"""Runs code that a model wrote, each time in a process that is thrown away."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import itertools
import os
import select
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from time import monotonic
from typing import IO
from weakref import WeakKeyDictionary

from .sandbox_supervisor import MORE_PROCESSES, STARVED, adopt_orphans, stray, sweep, wall_limit

# A control group for one program, if this account may make one (Linux, cgroup v2): all in it is killed at once, however
# quickly it multiplies. Without one, programs run without a group.

_PREFIX = "marlaas-"
_ENDING = 1.0
"""Seconds that killed processes get to disappear."""
_numbers = itertools.count()


class Group:
    """An empty control group below the one of this process."""

    def __init__(self, path: str) -> None:
        """``OSError`` if it cannot be made."""
        os.mkdir(path)
        self.path = path

    def end(self) -> None:
        """Kill all that is in it, and remove it."""
        with contextlib.suppress(OSError):
            _write(self.path, "cgroup.kill", b"1")
            until = monotonic() + _ENDING
            with open(os.path.join(self.path, "cgroup.events"), "rb", buffering=0) as file:
                poll = select.poll()
                poll.register(file, select.POLLPRI)
                while b"populated 1" in os.pread(file.fileno(), 4096, 0) and monotonic() < until:
                    poll.poll(1000 * _ENDING)
        for folder, _, _ in os.walk(self.path, topdown=False):
            with contextlib.suppress(OSError):
                os.rmdir(folder)


def _write(folder: str, name: str, value: bytes) -> None:
    with open(os.path.join(folder, name), "r+b", buffering=0) as file:
        file.write(value)


def new_group(processes: int) -> Group | None:
    """A group that may hold this many ``processes``, if the kernel counts them; None if none is to be had."""
    place = parent_group()
    if place is None:
        return None
    try:
        group = Group(os.path.join(place, f"{_PREFIX}{os.getpid()}-{next(_numbers)}"))
    except OSError:
        return None
    with contextlib.suppress(OSError):
        _write(group.path, "pids.max", str(processes).encode())
    return group


@functools.cache
def parent_group() -> str | None:
    """The group of this process, if groups can be made below it and processes moved into them; else None."""
    with contextlib.suppress(OSError):
        place = place_of(Path("/proc/self/cgroup").read_text(), Path("/proc/self/mountinfo").read_text())
        if place is None or not os.access(os.path.join(place, "cgroup.procs"), os.W_OK):
            return None
        for name in os.listdir(place):  # those of processes that were killed; one in use cannot be removed
            maker = name.removeprefix(_PREFIX).partition("-")[0]
            if name.startswith(_PREFIX) and maker.isdigit() and not os.path.exists(f"/proc/{maker}"):
                with contextlib.suppress(OSError):
                    os.rmdir(os.path.join(place, name))
        tried = os.path.join(place, f"{_PREFIX}{os.getpid()}")
        os.mkdir(tried)
        try:
            return place if os.access(os.path.join(tried, "cgroup.kill"), os.W_OK) else None  # Linux 5.14
        finally:
            os.rmdir(tried)
    return None


def place_of(own: str, mounts: str) -> str | None:
    """The folder of a process's group, from what ``/proc`` says about it; None if there is no cgroup v2."""
    group = next((line[3:] for line in own.splitlines() if line.startswith("0::/")), None)
    mounted = next((line.split()[3:5] for line in mounts.splitlines() if " - cgroup2 " in line), None)
    if group is None or mounted is None:
        return None
    below = os.path.relpath(group, mounted[0])
    return None if below.startswith("..") else os.path.normpath(os.path.join(mounted[1], below))


_REMOVING = 60.0
"""Seconds; only a program that still writes there makes removal take as long."""


def remove_folder(path: str) -> None:
    """Remove a folder that a hostile program filled, with all that is in it. What the system does not let go of stays.

    Links are not followed. Folders that are too deep for Python, or closed to their owner, are left to the system's
    tools.
    """
    import shutil  # with subprocess: a plugin without a sandbox should not wait for them
    import subprocess

    if os.path.islink(path):
        return
    with contextlib.suppress(OSError, RecursionError):
        return shutil.rmtree(path)
    for command in (("chmod", "-R", "u+rwX"), ("rm", "-rf")):
        with contextlib.suppress(OSError, subprocess.TimeoutExpired):
            subprocess.run((*command, "--", path), capture_output=True, check=False, timeout=_REMOVING)


SECONDS = 2.0
MEMORY_MB = 256


class Starved(BaseException):
    """Raised in an episode whose program had too little of the machine to be judged: it is played again."""


LARGEST_OUTPUT = 1 << 20
"""Bytes of each stream that are kept."""
_GRACE = 2.0
"""Seconds that the supervisor gets to clean up."""
_PATIENCE = 10.0
"""Seconds that it gets to end a program whose time is up."""
_MOST_AT_ONCE = 16
SUPERVISOR = os.path.join(os.path.dirname(__file__), "sandbox_supervisor.py")
_ONE_THREAD = dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "1")
_running: set[object] = set()
_places: WeakKeyDictionary[asyncio.AbstractEventLoop, asyncio.Semaphore] = WeakKeyDictionary()


@dataclass(frozen=True)
class Ran:
    """What a piece of code printed, and how it ended."""

    stdout: str
    stderr: str
    exit_code: int
    """0 if it ran to its end, 1 after an exception, what it gave ``sys.exit``; 128 + n where signal n ended it."""
    timed_out: bool
    """Whether it computed, or waited, for longer than it was given."""
    cut: bool
    """Whether it printed more than the 1 MiB that is kept of each stream."""

    @property
    def ok(self) -> bool:
        """Whether it ended in time and with exit code 0: nothing is said about what it printed."""
        return self.exit_code == 0 and not self.timed_out


class Sandbox:
    """The ``ep.sandbox`` of an episode."""

    def __init__(
        self,
        queueing: Callable[[], AbstractContextManager[None]] = nullcontext,
        starved: Callable[[], None] = lambda: None,
    ) -> None:
        """``queueing`` is entered while a run waits for others to end; ``starved`` is called before ``Starved`` is
        raised."""
        self._queueing = queueing
        self._starved = starved
        self.timeouts = 0
        """Programs that ran out of time."""

    async def python(self, code: str, stdin: str = "", *, seconds: float = SECONDS, memory_mb: int = MEMORY_MB) -> Ran:
        """Run Python ``code`` as a program that reads ``stdin``; it may compute for ``seconds``.

        These are processor seconds, of the program with all that it starts: how busy the machine is does not matter.
        Waiting, as in ``time.sleep``, may take twice as long, and a second more. A program that could hardly run at
        all ends the episode, which is played again.

        It runs in a session and its own empty folder, without your environment variables, with bounds on the memory of
        each process, on sizes of files and on numbers of processes. Its folder and all that it started end with it.
        Waiting for one of the places (as many as processors) takes nothing off the episode's time. Hashes are not
        randomised.

        **It is no security boundary**: the code has your rights. It can read your files, use the network, and end
        processes of yours. If that matters, confine plugins: ``sandbox = true`` under ``[environments]`` of
        ``marlaas.toml``.

        Judge by what only the environment knows: give the code an input, and compare ``stdout`` with the answer here.
        ``ok`` alone proves nothing, as code that is followed by assertions can leave before them.

        Raises ``TypeError`` or ``ValueError`` for arguments that mean nothing, ``OSError`` if no process can be
        started. What the code does wrong is never raised.
        """
        if not isinstance(code, str) or not isinstance(stdin, str):
            raise TypeError("the sandbox runs a text and gives it a text to read")
        if not 0 < seconds <= 86_400 or not 0 < memory_mb < 1 << 24:
            raise ValueError(f"the sandbox cannot grant {seconds} seconds or {memory_mb} MB")
        place = places()
        with self._queueing():
            await place.acquire()
        try:
            ran = await _run(code, stdin, seconds, int(memory_mb))
        except Starved:
            self._starved()
            raise
        finally:
            place.release()
        self.timeouts += ran.timed_out
        return ran


def places() -> asyncio.Semaphore:
    """The places for programs, which all episodes of the process share."""
    loop = asyncio.get_running_loop()
    if loop not in _places:
        _places[loop] = asyncio.Semaphore(min(_MOST_AT_ONCE, os.cpu_count() or 1))
    return _places[loop]


async def _run(code: str, stdin: str, seconds: float, memory_mb: int) -> Ran:
    from tempfile import TemporaryFile, mkdtemp  # takes longer to import than a plugin without a sandbox should wait

    folder = mkdtemp(prefix="sandbox-")
    try:
        with open(os.path.join(folder, "main.py"), "wb") as program:
            program.write(code.encode("utf-8", "replace"))
        with TemporaryFile(buffering=0) as given, TemporaryFile(buffering=0) as out, TemporaryFile(buffering=0) as err:
            given.write(stdin.encode("utf-8", "replace"))
            given.seek(0)
            with adopting():
                group = new_group(MORE_PROCESSES)
                try:
                    process = await asyncio.create_subprocess_exec(
                        *(sys.executable, "-P", "-s", SUPERVISOR, str(seconds), str(memory_mb), str(os.getpid())),
                        group.path if group is not None else "",
                        stdin=given,
                        stdout=out,
                        stderr=err,
                        cwd=folder,
                        env=_environment(folder),
                        start_new_session=True,
                    )
                    ended = await end_of(process, wall_limit(seconds) + _PATIENCE)
                finally:
                    await asyncio.to_thread(end_strays, group)
            (stdout, more_out), (stderr, more_err) = _read(out), _read(err)
        if ended == -STARVED:
            raise Starved(f"the machine was too busy to judge a program that may compute for {seconds:g} s")
        exit_code = ended if ended >= 0 else 128 - ended
        return Ran(stdout, stderr, exit_code, ended == -signal.SIGALRM, more_out or more_err)
    finally:
        await asyncio.to_thread(remove_folder, folder)


@contextmanager
def adopting() -> Iterator[None]:
    """Adopt what programs leave behind after killing their supervisor, only while programs run: nobody waits for the
    orphans of a plugin's own programs.
    """
    run = object()
    _running.add(run)
    adopt_orphans(True)
    try:
        yield
    finally:
        _running.discard(run)
        if not _running:
            adopt_orphans(False)


def end_strays(group: Group | None, chosen: Callable[[int], bool] = stray) -> None:
    """Kill what the supervisor has left; ``chosen`` tells if a child of this process is such a program's."""
    if group is not None:
        group.end()
    sweep(chosen)


async def end_of(process: asyncio.subprocess.Process, patience: float | None) -> int:
    """The exit code of the supervisor, or minus the signal that ended it.

    ``patience``: seconds after which it is ended, with its program; None if others bound it.
    """
    try:
        async with asyncio.timeout(patience):
            return await process.wait()
    except TimeoutError:  # the program keeps it from saying so
        return -signal.SIGALRM
    finally:
        with contextlib.suppress(ProcessLookupError, TimeoutError):
            if process.returncode is None:
                process.terminate()  # it knows which processes to kill
                async with asyncio.timeout(_GRACE):
                    await process.wait()
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)
        await process.wait()


def _environment(folder: str) -> dict[str, str]:
    """That of ``python -I`` with a fixed seed of hashes: with a random one a verdict may depend on luck."""
    python = {"PYTHONHASHSEED": "0", "PYTHONUTF8": "1", "PYTHONDONTWRITEBYTECODE": "1"}
    return {"PATH": os.defpath, "HOME": folder, "TMPDIR": folder, "LC_ALL": "C.UTF-8", **python, **_ONE_THREAD}


def _read(stream: IO[bytes]) -> tuple[str, bool]:
    found = os.pread(stream.fileno(), LARGEST_OUTPUT + 1, 0)
    return found[:LARGEST_OUTPUT].decode("utf-8", "replace"), len(found) > LARGEST_OUTPUT
