"""Runs a model's code, each time in a new process."""

from __future__ import annotations

import asyncio
import functools
import itertools
import os
import select
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import dataclass
from pathlib import Path
from time import monotonic
from typing import IO
from weakref import WeakKeyDictionary

from .sandbox_supervisor import MORE_PROCESSES, STARVED, adopt_orphans, stray, sweep, wall_limit

# A control group (Linux, cgroup v2), if allowed, is killed at once, however quickly its program multiplies.

_PREFIX = "marlaas-"
_MOUNTED = "/sys/fs/cgroup"
"""Elsewhere, as next to version 1, no group is made."""
_ENDING = 1.0
"""Seconds for killed processes to disappear."""
_numbers = itertools.count()


class Group:
    """Empty, below this process's."""

    def __init__(self, path: str) -> None:
        """Raises ``OSError``."""
        os.mkdir(path)
        self.path = path

    def end(self) -> None:
        """Kill all in it, and remove it."""
        with suppress(OSError):
            _write(self.path, "cgroup.kill", b"1")
            until = monotonic() + _ENDING
            with open(os.path.join(self.path, "cgroup.events"), "rb", buffering=0) as file:
                poll = select.poll()
                poll.register(file, select.POLLPRI)
                while b"populated 1" in os.pread(file.fileno(), 4096, 0) and monotonic() < until:
                    poll.poll(1000 * _ENDING)
        for folder, _, _ in os.walk(self.path, topdown=False):
            with suppress(OSError):
                os.rmdir(folder)


def _write(folder: str, name: str, value: bytes) -> None:
    file = os.open(os.path.join(folder, name), os.O_WRONLY)  # cgroup.kill cannot be read
    try:
        os.write(file, value)
    finally:
        os.close(file)


def new_group(processes: int) -> Group | None:
    """For this many ``processes``, if the kernel counts them; None: not available."""
    place = parent_group()
    if place is None:
        return None
    try:
        group = Group(os.path.join(place, f"{_PREFIX}{os.getpid()}-{next(_numbers)}"))
    except OSError:
        return None
    with suppress(OSError):
        _write(group.path, "pids.max", str(processes).encode())
    return group


@functools.cache
def parent_group() -> str | None:
    """This process's, if it may hold others; else None."""
    with suppress(OSError):
        lines = Path("/proc/self/cgroup").read_text().splitlines()
        place = next((f"{_MOUNTED}{line[3:]}" for line in lines if line.startswith("0::/")), "")
        if not os.access(os.path.join(place, "cgroup.procs"), os.W_OK):
            return None
        for name in os.listdir(place):  # those of processes that were killed; one in use cannot be removed
            maker = name.removeprefix(_PREFIX).partition("-")[0]
            if name.startswith(_PREFIX) and maker.isdigit() and not os.path.exists(f"/proc/{maker}"):
                with suppress(OSError):
                    os.rmdir(os.path.join(place, name))
        tried = os.path.join(place, f"{_PREFIX}{os.getpid()}")
        os.mkdir(tried)
        try:
            return place if os.access(os.path.join(tried, "cgroup.kill"), os.W_OK) else None  # Linux 5.14
        finally:
            os.rmdir(tried)
    return None


_REMOVING = 60.0
"""Seconds, if a program still writes."""


def remove_folder(path: str) -> None:
    """Filled by a hostile program; what cannot be removed stays.

    Follows no links. The system's tools get folders too deep for Python, or closed to their owner.
    """
    import shutil  # with subprocess: a plugin without a sandbox should not wait for them
    import subprocess

    if os.path.islink(path):
        return
    with suppress(OSError, RecursionError):
        return shutil.rmtree(path)
    for command in (("chmod", "-R", "u+rwX"), ("rm", "-rf")):
        with suppress(OSError, subprocess.TimeoutExpired):
            subprocess.run((*command, "--", path), capture_output=True, check=False, timeout=_REMOVING)


SECONDS = 2.0
MEMORY_MB = 256


class Starved(BaseException):
    """Too little of the machine to judge the program: its episode is played again."""


LARGEST_OUTPUT = 1 << 20
"""Bytes per stream."""
_GRACE = 2.0
"""Seconds to clean up."""
_PATIENCE = 10.0
"""Seconds to end a program whose time is up."""
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
        """``queueing`` is entered while a run waits for others; ``starved`` is called before ``Starved``."""
        self._queueing = queueing
        self._starved = starved
        self.timeouts = 0
        """Programs that ran out of time."""

    async def python(self, code: str, stdin: str = "", *, seconds: float = SECONDS, memory_mb: int = MEMORY_MB) -> Ran:
        """Run Python ``code``, which reads ``stdin`` and may compute for ``seconds``.

        These are processor seconds of all its processes. Waiting, as in ``time.sleep``, may take twice as long and a
        second more. A program that could hardly run ends the episode, which is played again.

        It runs in a session and its own empty folder, without your environment variables, with bounds on memory, file
        sizes and processes. All of it ends with it. Waiting for a place (as many as processors) costs no episode time.
        Hashes are not randomised.

        **It is no security boundary**: the code can read your files, use the network, and end your processes. To
        confine plugins: ``sandbox = true`` under ``[environments]`` of ``marlaas.toml``.

        Judge by what only the environment knows: give an input, compare ``stdout``. ``ok`` proves nothing: code can
        exit before assertions behind it.

        Raises ``TypeError`` or ``ValueError`` for bad arguments, ``OSError`` if no process can be started; never the
        code's errors.
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
    """Shared by the process's episodes."""
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
    """Only while programs run: nobody waits for a plugin's own orphans."""
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
    """``chosen`` recognises the supervisor's leftovers."""
    if group is not None:
        group.end()
    sweep(chosen)


async def end_of(process: asyncio.subprocess.Process, patience: float | None) -> int:
    """Exit code, or minus the signal.

    ``patience``: seconds until it is ended with its program; None: others bound it.
    """
    try:
        async with asyncio.timeout(patience):
            return await process.wait()
    except TimeoutError:  # the program keeps it from saying so
        return -signal.SIGALRM
    finally:
        with suppress(ProcessLookupError, TimeoutError):
            if process.returncode is None:
                process.terminate()  # it knows which processes to kill
                async with asyncio.timeout(_GRACE):
                    await process.wait()
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)
        await process.wait()


def _environment(folder: str) -> dict[str, str]:
    """``python -I`` with a fixed hash seed: verdicts must not depend on luck."""
    python = {"PYTHONHASHSEED": "0", "PYTHONUTF8": "1", "PYTHONDONTWRITEBYTECODE": "1"}
    return {"PATH": os.defpath, "HOME": folder, "TMPDIR": folder, "LC_ALL": "C.UTF-8", **python, **_ONE_THREAD}


def _read(stream: IO[bytes]) -> tuple[str, bool]:
    found = os.pread(stream.fileno(), LARGEST_OUTPUT + 1, 0)
    return found[:LARGEST_OUTPUT].decode("utf-8", "replace"), len(found) > LARGEST_OUTPUT
