"""Runs one episode with a program."""

from __future__ import annotations

import asyncio
import errno
import functools
import hashlib
import inspect
import json
import math
import os
import resource
import shutil
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path, PurePath
from tempfile import TemporaryDirectory, TemporaryFile, gettempdir, mkdtemp
from typing import IO, TYPE_CHECKING, Any

from ..blocking import BlockingEpisode, wait_on
from ..episode import Episode
from ..host.limits import memory_mb
from ..json_values import not_json
from ..rewards import DEFAULT_AGENT, Score, finite
from ..sandbox import SUPERVISOR, adopting, end_of, end_strays, new_group, remove_folder
from ..sandbox_supervisor import NO_DISK, NO_MEMORY
from .agents import install_of
from .words import Addresses, filled

if TYPE_CHECKING:
    from .harbor import Task


KEPT = 512 << 10
"""Bytes of a stream's beginning, and of its end."""
FLOOD = 64 << 20
"""Bytes of a stream that end a program."""
DISK = 4 << 30
"""Bytes of a program's folders that end it."""
_LEFT_OUT = b"\n[...]\n"


@dataclass
class Output:
    """What a stream has printed."""

    kept: bytearray = field(default_factory=bytearray)
    """Its beginning and its end."""
    printed: int = 0

    async def read(self, reader: asyncio.StreamReader, process: asyncio.subprocess.Process) -> None:
        while data := await reader.read(KEPT):
            self.printed += len(data)
            self.kept += data
            del self.kept[KEPT:-KEPT]
            if self.printed > FLOOD:
                with suppress(ProcessLookupError):
                    process.terminate()

    @property
    def cut(self) -> bool:
        return self.printed > 2 * KEPT

    def text(self) -> str:
        between = _LEFT_OUT if self.cut else b""
        return (self.kept[:KEPT] + between + self.kept[KEPT:]).decode("utf-8", "replace")


# The program's reward file is not trusted.

LARGEST = 64 << 10
REWARD = "reward"
"""The trained value; others are charted parts."""

Reward = float | Score | dict[str, float | Score]


def read_text(folder: str, name: str, most: int) -> str | None:
    """None: missing.

    Raises ``ValueError`` unless plain and at most ``most`` bytes. Follows no link, reads no pipe.
    """
    try:
        file = os.open(os.path.join(folder, name), os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise ValueError(f"{name} cannot be read: {error.strerror}") from None
    try:
        if not stat.S_ISREG(os.fstat(file).st_mode):
            raise ValueError(f"{name} is no plain file")
        content = b""
        while len(content) <= most and (more := os.read(file, most + 1 - len(content))):
            content += more
    finally:
        os.close(file)
    if len(content) > most:
        raise ValueError(f"{name} is larger than {most:,} bytes")
    return content.decode("utf-8", "replace")


def reward_of(text: str, name: str) -> Reward:
    """``0.5``, ``true``, ``{"reward": 0.5, "spelling": 1}``, or ``{"reward": {"first": 1}}``.

    ``name``: the file's. Raises ``TypeError`` or ``ValueError``.
    """
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        try:
            value = float(text)  # as in "+1", ".5"
        except ValueError:
            what = f"must hold a number or JSON with {REWARD!r}, not {text.strip()[:40]!r}"
            raise ValueError(f"{name} {what if text.strip() else 'is empty: write a number'}") from None
    if not isinstance(value, Mapping):
        return finite(value, f"what {name} holds")
    if REWARD not in value:
        raise ValueError(f"{name} has no {REWARD!r}; it has {', '.join(map(str, value))[:80] or 'nothing'}")
    whole = value[REWARD]
    parts = {key: finite(part, f"{key!r} in {name}") for key, part in value.items() if key != REWARD}
    if not isinstance(whole, Mapping):
        score = Score(finite(whole, f"{REWARD!r} in {name}"))
        score.parts.update(parts)  # not by keyword: a part may have any name
        return score
    if parts:  # they are the episode's, and parts are some agent's
        first = next(iter(whole), "")
        raise ValueError(f"{name} has a reward for each agent, so {next(iter(parts))!r} cannot stand beside {first!r}")
    return {agent: finite(part, f"the reward of {agent!r} in {name}") for agent, part in whole.items()}


MARK = "MARLAAS_PROGRAM"
"""Variable of processes that the supervisor lost."""
NOT_RUN = (126, 127)
"""Exit codes: missing, or cannot be run."""
_PROCESSES = 1024
"""With threads, if the kernel counts them."""
_LONGEST_FILE = 1 << 20
_LAST_LINES = 300
_DRAINING = 1.0
_LOOK = 0.25
"""Seconds between two looks at the free memory."""


class ProgramFailed(Exception):
    """Its end proves nothing: the episode has no reward."""

    traced = False
    """The frames are marlaas's own."""


@dataclass(frozen=True)
class ProgramRun:
    """A program that has ended; its folder is there until the function that it is given to returns."""

    exit_code: int
    """What it exited with; 128 + n where signal n ended it."""
    stdout: str
    """What it printed: the first and the last half MiB."""
    stderr: str
    cut: bool
    """Whether something was left out of the middle of ``stdout`` or ``stderr``."""
    flooded: bool
    """Whether it was ended because it printed more than 64 MiB."""
    seconds: float
    """From its start to its end, with its waiting for the model."""
    folder: str
    """The folder in which it ran."""
    files: tuple[str, ...]
    """What lies there and below, by names relative to it; at most 1,000."""

    @property
    def ok(self) -> bool:
        """Whether it ended with exit code 0."""
        return self.exit_code == 0

    def read(self, name: str) -> str:
        """The text of a file in its folder.

        Raises ``FileNotFoundError``, and ``ValueError`` for what is no plain file of at most 1 MiB.
        """
        text = read_text(self.folder, name, _LONGEST_FILE)
        if text is None:
            raise FileNotFoundError(str(self.failure(f"and left no {name}")))
        return text

    def failure(self, what: str = "") -> ProgramFailed:
        """The error that shows how it ended, with ``what`` is the matter, and what it printed last."""
        how = f"the program ended with exit code {self.exit_code}"
        if self.flooded:
            how = "the program was ended because it printed more than 64 MiB"
        elif self.exit_code > 128:
            how = f"the program was ended by signal {self.exit_code - 128}"
        last = (self.stderr.strip() or self.stdout.strip())[-_LAST_LINES:]
        return ProgramFailed(how + (f" {what}" if what else "") + (f"; its last lines: {last}" if last else ""))


class Places:
    """A process's programs, as many as the memory holds."""

    def __init__(self) -> None:
        self.running = 0

    async def take(self) -> None:
        """Wait until memory is free for one more, as if none of those that run had grown yet.

        Each counts as the largest process that has ended.
        """
        while self.running and (self.running + 1) * _largest() > _free():
            await asyncio.sleep(_LOOK)
        self.running += 1

    def leave(self) -> None:
        self.running -= 1


places = Places()


def _largest() -> int:
    """Bytes of the largest child that has ended."""
    return resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss << 10


def _free() -> float:
    """Bytes of memory; infinite if unknown."""
    with suppress(OSError), open("/proc/meminfo", "rb") as file:
        return next((int(row.split()[1]) << 10 for row in file if row.startswith(b"MemAvailable:")), math.inf)
    return math.inf


def executable(words: Sequence[str], folder: str, environment: Mapping[str, str]) -> tuple[str, ...]:
    """With the program's path; ``python`` is the plugin's.

    Raises ``ProgramFailed``.
    """
    first, *others = words
    if first in ("python", "python3"):
        return (sys.executable, *others)
    if os.path.dirname(first):
        path = os.path.join(folder, first)
        if os.access(path, os.X_OK) and os.path.isfile(path):
            return (path, *others)
        why = "cannot be run: make it executable" if os.path.exists(path) else "is not there: name it under files"
        raise ProgramFailed(f"the program {first} {why}, or put its interpreter before it")
    if (found := shutil.which(first, path=environment.get("PATH", os.defpath))) is not None:
        return (found, *others)
    how = f"install it with `{install_of(first)}`" if install_of(first) else "install it"
    raise ProgramFailed(f"the program {first} is not on the PATH: {how}, or name it by its path")


def mount_place() -> str:
    """Where each program of a plugin sees its own folders, so that the members of a group have equal prompts.

    Empty if this system mounts nothing for its users.
    """
    place = os.path.join(gettempdir(), "program")
    return place if mounts(place) else ""


@functools.cache
def mounts(place: str) -> bool:
    """True if this system shows a program its own folder at ``place``."""
    code = "import sys; sys.path.append(sys.argv[1]); from sandbox_supervisor import mount; mount(*sys.argv[2:])"
    try:
        os.makedirs(place, exist_ok=True)
        with TemporaryDirectory() as folder:
            words = (sys.executable, "-I", "-S", "-c", code, os.path.dirname(SUPERVISOR), folder, place)
            return not subprocess.run(words, cwd=folder, capture_output=True, check=False).returncode
    except OSError:
        return False


async def run(
    words: Sequence[str],
    folder: str,
    environment: Mapping[str, str],
    stdin: str,
    bounded: str = "",
    mount: str = "",
    container: str = "",
) -> ProgramRun:
    """Cancelling kills all processes. ``bounded``: the folder that is limited in size, if not ``folder``; the program
    sees it at ``mount``. ``container``: the name of the one that ``words`` run.

    Raises ``ProgramFailed`` if it cannot be started, or takes more memory or disk space than it may.
    """
    mark = os.urandom(16).hex()
    first, *others = executable(words, folder, environment)
    command = (first.replace(bounded, mount.rstrip("/")) if mount else first, *others)
    began, loop = time.monotonic(), asyncio.get_running_loop()
    with ExitStack() as stack:
        given = stack.enter_context(TemporaryFile(buffering=0))
        given.write(stdin.encode("utf-8", "replace"))
        given.seek(0)
        out, err = Output(), Output()
        out_reader, out_end = await _stream(loop, stack)
        err_reader, err_end = await _stream(loop, stack)
        stack.enter_context(adopting())
        group = new_group(_PROCESSES)
        try:
            process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-I", "-S", SUPERVISOR, "inf", str(memory_mb()), str(os.getpid())),
                *(group.path if group is not None else "", bounded or folder, str(DISK), mount, container, *command),
                stdin=given,
                stdout=out_end,
                stderr=err_end,
                cwd=folder,
                env={**environment, MARK: mark},
                start_new_session=True,
            )
            streams = (out, out_reader), (err, err_reader)
            reading = [asyncio.ensure_future(output.read(reader, process)) for output, reader in streams]
            stack.callback(lambda: [each.cancel() for each in reading])
            code = await end_of(process, None)
        except (OSError, ValueError) as error:  # an argument that is too long, or holds a null byte
            raise ProgramFailed(f"the program {words[0]} cannot be started: {error}") from None
        finally:
            out_end.close()
            err_end.close()
            await asyncio.to_thread(end_strays, group, functools.partial(_marked, mark.encode()))
        await asyncio.wait(reading, timeout=_DRAINING)
    if code == -NO_MEMORY:
        most = f"{memory_mb():,} MB of memory, and was ended: raise memory_mb under [tool.marlaas]"
        raise ProgramFailed(f"the program took more than {most}") from MemoryError()  # earns no ``on_error``
    if code == -NO_DISK:
        most = f"{DISK >> 20:,} MB of disk space, and was ended: have it remove what it no longer needs"
        raise ProgramFailed(f"the program took more than {most}") from OSError(errno.ENOSPC, most)
    return ProgramRun(
        exit_code=code if code >= 0 else 128 - code,
        stdout=out.text(),
        stderr=err.text(),
        cut=out.cut or err.cut,
        flooded=max(out.printed, err.printed) > FLOOD,
        seconds=time.monotonic() - began,
        folder=folder,
        files=(),
    )


async def _stream(loop: asyncio.AbstractEventLoop, stack: ExitStack) -> tuple[asyncio.StreamReader, IO[bytes]]:
    ours, theirs = os.pipe()
    end, reader = stack.enter_context(os.fdopen(theirs, "wb", 0)), asyncio.StreamReader()
    protocol = asyncio.StreamReaderProtocol(reader)
    transport, _ = await loop.connect_read_pipe(lambda: protocol, os.fdopen(ours, "rb", 0))
    stack.callback(transport.close)
    return reader, end


def _marked(mark: bytes, pid: int) -> bool:
    try:
        with open(f"/proc/{pid}/environ", "rb") as file:
            return mark in file.read()
    except OSError:
        return False


MOUNT = "/marlaas"
"""Where a program in a container sees its folders."""
FIXED = "fixed"
"""The folder that it cannot change."""
CLIENTS = ("podman", "docker")
CLIENT_FAILED = 125
"""Exit code if there is no container."""
_PATIENCE = 60.0
_pulling = threading.Lock()


@functools.cache
def find_client() -> str:
    """The path of ``podman`` or ``docker``. Raises ``ProgramFailed``."""
    if os.path.exists("/proc/1/comm") and Path("/proc/1/comm").read_text() == "bwrap\n":
        raise ProgramFailed("a plugin under sandbox = true or network = false starts no container: leave out image")
    reason = "an image needs podman or docker: install podman"
    for client in filter(None, map(shutil.which, CLIENTS)):
        if not (error := _error_of(client, "info")):
            return client
        reason = f"an image needs podman or docker, and {os.path.basename(client)} does not answer ({error}): start it"
    raise ProgramFailed(reason)


def pull(image: str) -> str:
    """The client, when it has the image. Raises ``ProgramFailed``."""
    client = find_client()
    with _pulling:  # the episodes of a group begin together
        if _error_of(client, "image", "inspect", image) and (error := _error_of(client, "pull", "--quiet", image)):
            how = f"see what `{os.path.basename(client)} pull {image}` says"
            raise ProgramFailed(f"the image {image} cannot be pulled ({error}): {how}")
    return client


def container_of(top: str) -> str:
    """The name of the container with these folders."""
    return f"marlaas-{os.path.basename(top)}"


def remove(client: str, container: str) -> None:
    """Also a container that still runs, or was never there."""
    _error_of(client, "rm", "--force", "--volumes", container)


def _error_of(*words: str) -> str:
    patience = None if "pull" in words else _PATIENCE
    try:
        done = subprocess.run(words, capture_output=True, text=True, errors="replace", check=False, timeout=patience)
    except (OSError, subprocess.TimeoutExpired) as error:
        return str(error)
    return (done.stderr.strip().splitlines() or ["it does not say why"])[-1][:300] if done.returncode else ""


def run_words(
    client: str, image: str, top: str, folder: str, variables: Mapping[str, str], words: Sequence[str]
) -> list[str]:
    """The command that runs ``words`` in a new container, with the folders of ``top`` below ``MOUNT``.

    ``folder``: to work in; empty: ``words`` go to one, as root. Otherwise what they write belongs to this user.
    """
    user = f"{os.getuid()}:{os.getgid()}" if folder and os.path.basename(client) == "docker" else "0:0"
    volumes = [f"{top}/{entry}:{MOUNT}/{entry}{':ro' * (entry == FIXED)}" for entry in sorted(os.listdir(top))]
    return [
        *(client, "run", "--interactive", f"--name={container_of(top)}", "--network=host", f"--user={user}"),
        *("--entrypoint=", "--stop-timeout=0", "--security-opt=label=disable"),
        *([f"--memory={memory_mb()}m"] if memory_mb() else []),
        *([f"--workdir={folder}"] if folder else []),
        *(f"--volume={volume}" for volume in volumes),
        *(f"--env={variable}={value}" for variable, value in variables.items()),
        *(image, *words),
    ]


# New for each episode.

Files = Mapping[str, str | Path] | Sequence[str]
"""Next to the plugin; or by new name, a text, or a path there."""
_MOST_LISTED = 1000
_SETTINGS = (".json", ".toml", ".yaml", ".yml", ".ini", ".cfg", ".env")
_OF_THE_PERSON = (
    *("XDG_CONFIG_HOME", "XDG_DATA_HOME", "XDG_CACHE_HOME", "XDG_STATE_HOME", "XDG_RUNTIME_DIR"),
    *("CONTAINER_HOST", "DOCKER_HOST"),
)
_HOME = "~/"
"""Begins the names of files in the program's home."""
MODEL = "policy"
"""Any name works; this one is told."""


@dataclass(frozen=True)
class Placed:
    """A file or folder for every episode."""

    name: str
    """Relative to the program's folder."""
    content: bytes | Path

    def put(self, folder: str, values: Mapping[str, object]) -> None:
        """``values`` are filled into settings that the author wrote as text; code may have such braces of its own."""
        target = os.path.join(folder, self.name.removeprefix(_HOME))
        os.makedirs(os.path.dirname(target), exist_ok=True)
        if isinstance(self.content, bytes):
            text = self.content
            if self.name.endswith(_SETTINGS):
                text = filled(text.decode("utf-8", "replace"), values).encode()
            Path(target).write_bytes(text)
            _make_executable(target)
        elif self.content.is_dir():
            shutil.copytree(self.content, target, symlinks=True, dirs_exist_ok=True, copy_function=_copy)
        else:
            _copy(self.content, target)


def _copy(source: str | Path, target: str) -> None:
    shutil.copy(source, target)
    _make_executable(target)


def _make_executable(script: str) -> None:
    with open(script, "rb") as file:
        if file.read(2) == b"#!":  # a plugin's copy keeps no permissions
            os.chmod(script, 0o755)


def placed(files: Files, words: Sequence[str], beside: Path) -> tuple[Placed, ...]:
    """The author's, and those that the command names.

    Raises ``TypeError`` or ``ValueError``.
    """
    if isinstance(files, str | bytes) or not isinstance(files, Mapping | Sequence):
        raise TypeError(f"files must be names beside the plugin, or texts by name, not {files!r:.40}")
    placed = {word: Placed(word, beside / word) for word in words if inside(word) and os.path.isfile(beside / word)}
    for name in files:
        if not isinstance(name, str):
            raise TypeError(f"files: the name of a file is a text, not {name!r:.40}")
        if not inside(name):
            raise ValueError(f"files: {name!r} does not lie in the program's folder: give it a name without .. or /")
        content = files[name] if isinstance(files, Mapping) else Path(name)
        placed[name] = Placed(name, _content(name, content, beside))
    return tuple(placed.values())


def inside(name: str) -> bool:
    """True: in a program's folder."""
    path = PurePath(name)
    return bool(path.parts) and not path.is_absolute() and ".." not in path.parts and "\0" not in name


def _content(name: str, content: object, beside: Path) -> bytes | Path:
    if not isinstance(content, str | Path):
        raise TypeError(f"files: {name!r} must be a text or a path beside the plugin, not {type(content).__name__}")
    if isinstance(content, str) and not (content.split() == [content] and PurePath(content).suffix):
        return content.encode("utf-8", "replace")  # only one word that ends as a file's name does is a path
    path = beside / content
    if os.path.exists(path):  # Path.exists raises for a name that is too long
        return path
    raise ValueError(
        f"files: there is no {content} beside the plugin: where its files are many, a plugin is a folder with an "
        "__init__.py"
    )


def listed(folder: str) -> tuple[str, ...]:
    """Below a folder, sorted; at most 1,000, no links."""
    names: list[str] = []
    for place, folders, files in os.walk(folder):
        folders.sort()
        names += [os.path.relpath(os.path.join(place, name), folder) for name in files]
        if len(names) >= _MOST_LISTED:
            break
    return tuple(sorted(names)[:_MOST_LISTED])


EXIT = "exit"
"""1 for exit code 0, else 0."""
KILLED = 128 + 9
"""SIGKILL comes when memory ends: no signal for learning."""
_LAST_PRINTED = 300
"""Characters that an episode shows."""
_LONGEST_VARIABLE = 100_000
"""Bytes; Linux takes 128 KiB."""

Function = Callable[..., Any]
Judge = Callable[[Episode, ProgramRun, Mapping[str, Any]], Awaitable[Any]]
"""Of a program's end."""


@dataclass(frozen=True)
class Program:
    """A program as declared."""

    name: str
    words: tuple[str, ...]
    files: tuple[Placed, ...]
    environment: Mapping[str, str]
    stdin: str
    reward: str
    """``exit``, a file's name, or empty: a function or none."""
    exit_codes: tuple[int, ...]
    agents: tuple[str, ...]
    tasks: Mapping[str, Task] = field(default_factory=dict)
    """Folders by their names; empty: other rows."""
    image: str = ""
    """Empty: that of the task, or no container."""

    @property
    def templates(self) -> tuple[str, ...]:
        return (*self.words, *self.environment.values(), self.stdin)


async def played(
    program: Program,
    scored: Callable[[], bool],
    prepare: Function | None,
    judge: Judge | None,
    ep: Episode,
    settings: Mapping[str, Any],
) -> object:
    """The reward; None if a score function in another process gives it (``scored``).

    ``prepare`` returns ``{prompt}``, or None for the row's; ``judge`` gets the program's end.
    """
    if not (program.tasks or program.reward or judge or scored()):
        name = program.name
        raise TypeError(
            f'{name} says no reward: give reward="{EXIT}", the name of a file, a function of the program\'s end, or '
            f"declare a function under @{name}.score"
        )
    prompt = await called(prepare, ep, settings=settings) if prepare is not None else None
    if prompt is None:
        prompt = _prompt(ep.task)
    task = await asyncio.to_thread(_task_of, program, ep.task) if program.tasks else None
    image = program.image or (task.image if task is not None else "")
    with ep._queueing():  # an image may take minutes, once
        client = await asyncio.to_thread(pull, image) if image else ""
    top, reward = _folder("work" if task is None else ""), None
    try:
        with ep._queueing():
            await places.take()
        try:
            ended = await _run(program, ep, top, prompt, task, client, image)
            if task is not None:
                _check_end(ended)
                reward = await task.test(top, {**_of_host(), **_own_folders("/")}, client)
        finally:
            places.leave()
        ended = replace(ended, files=await asyncio.to_thread(listed, ended.folder))
        ep.log(exit_code=ended.exit_code, program_seconds=ended.seconds)
        if not ended.ok:
            ep.log(stderr=ended.stderr[-1000:])
        if printed := ended.stdout.strip():
            ep.log(stdout=printed[-_LAST_PRINTED:])
        return reward if task is not None else await _worth(program, ep, ended, judge, settings)
    finally:
        if client:
            await asyncio.to_thread(remove, client, container_of(top))
        await asyncio.to_thread(remove_folder, top)


def _folder(work: str) -> str:
    """With the folders ``work`` (may be empty), ``tmp`` and ``home``. Raises ``ProgramFailed``."""
    try:
        top = mkdtemp(prefix="program-")
        try:
            for name in (work, "tmp", "home"):
                os.makedirs(os.path.join(top, name), exist_ok=True)
        except OSError:
            remove_folder(top)
            raise
    except OSError as error:  # as the cause: a full disk earns no ``on_error``
        raise ProgramFailed(f"no folder can be made for the program: {error}") from error
    return top


async def called(
    function: Function, ep: Episode, *given: object, settings: Mapping[str, Any], alone: bool = False
) -> Any:
    """A plain function runs in a thread, with a blocking episode.

    ``alone``: without an episode.
    """
    if inspect.iscoroutinefunction(function):
        return await function(*(() if alone else (ep,)), *given, **settings)
    apart = ep._tool_runner.apart or asyncio.to_thread
    blocking = () if alone else (BlockingEpisode(ep, wait_on(asyncio.get_running_loop())),)
    return await apart(functools.partial(function, *blocking, *given, **settings))


def _task_of(program: Program, row: object) -> Task:
    if not isinstance(row, Mapping) or row.get("name") not in program.tasks:
        raise ValueError(f"{program.name} plays the rows of its task folders only: leave out [data]")
    task = program.tasks[row["name"]]
    if not task.image and not mounts("/"):
        raise ProgramFailed(
            f"{program.name} cannot show its tasks folders such as /app, because nothing can be mounted here: that "
            "takes a Linux with namespaces for every user, and in a sandbox another user than root; or name an image"
        )
    return task


async def _run(
    program: Program, ep: Episode, top: str, prompt: object, task: Task | None, client: str, image: str
) -> ProgramRun:
    if fault := not_json(ep.task):
        raise TypeError(f"the program {program.name} reads its task as JSON, which cannot hold it: {fault}")
    row = json.dumps(ep.task)  # ASCII: its length is its bytes
    mount = MOUNT if client else "/" if task is not None else await asyncio.to_thread(mount_place)
    work, home = os.path.join(top, "work") if task is None else task.work(top), os.path.join(top, "home")
    names = program.agents or (DEFAULT_AGENT,)
    endpoints = {name: await ep.endpoint(name) for name in names}
    first = endpoints[names[0]]
    several = {name: {"url": endpoint.url, "key": endpoint.key} for name, endpoint in endpoints.items()}
    values = {
        "prompt": prompt,
        "task": ep.task,
        "config": ep.config,
        "index": ep.index,
        "seed": seed_of(ep),
        "split": ep.split,
        "url": Addresses(first.url, {name: endpoint.url for name, endpoint in endpoints.items()}),
        "key": first.key,
        "model": MODEL,
    }

    def fill() -> None:
        if task is not None:
            task.prepare(top)
        for placed in program.files:
            placed.put(home if placed.name.startswith(_HOME) else work, values)
        Path(top, "task.json").write_text(row, "utf-8")

    await asyncio.to_thread(fill)
    variables = {
        **_own_folders(mount or top),
        **({} if task is None else task.variables),
        **first.environment(),
        "MARLAAS_ENDPOINTS": json.dumps(several),
        "MARLAAS_TASK": row if len(row) <= _LONGEST_VARIABLE else "",
        "MARLAAS_TASK_FILE": os.path.join(mount or top, "task.json"),
        "MARLAAS_CONFIG": json.dumps(ep.config),
        **{name: filled(value, values) for name, value in program.environment.items()},
    }
    words, stdin = [filled(word, values) for word in program.words], filled(program.stdin, values)
    if not client:
        return await run(words, work, {**_of_host(), **variables}, stdin, top, mount)
    words, folder = (words, f"{MOUNT}/work") if task is None else (["sh", f"{MOUNT}/{FIXED}/main", *words], "")
    words = run_words(client, image, top, folder, variables, words)
    ended = await run(words, top, os.environ, stdin, top, "", container_of(top))
    if ended.exit_code == CLIENT_FAILED:
        raise ended.failure()
    return replace(ended, folder=work)


def _own_folders(top: str) -> dict[str, str]:
    return {"HOME": os.path.join(top, "home"), "TMPDIR": os.path.join(top, "tmp")}


def _of_host() -> dict[str, str]:
    variables = {name: value for name, value in os.environ.items() if name not in _OF_THE_PERSON}
    path = (os.path.dirname(sys.executable), os.environ.get("PATH", os.defpath))
    return {**variables, "PATH": os.pathsep.join(path)}


def _prompt(task: object) -> str:
    """The row, or its field ``prompt``."""
    prompt = task.get("prompt", "") if isinstance(task, Mapping) else task
    return prompt if isinstance(prompt, str) else ""


def seed_of(ep: Episode) -> int:
    """Below 2 ** 31, shared by a group."""
    return int.from_bytes(hashlib.sha256(f"{ep._draw}/program".encode()).digest()[:4], "big") >> 1


def _check_end(ended: ProgramRun) -> None:
    """Raises ``ProgramFailed`` unless the program ran."""
    if ended.exit_code in NOT_RUN or (ended.exit_code == KILLED and not ended.flooded):
        raise ended.failure()


async def _worth(
    program: Program, ep: Episode, ended: ProgramRun, judge: Judge | None, settings: Mapping[str, Any]
) -> object:
    _check_end(ended)
    if program.reward == EXIT:
        return float(ended.ok)
    if program.reward:
        text = await asyncio.to_thread(read_text, ended.folder, program.reward, LARGEST)
        if text is None:
            raise ended.failure(f"and left no {program.reward}")
        return reward_of(text, program.reward)
    if ended.exit_code not in program.exit_codes:
        raise ended.failure()
    return await judge(ep, ended, settings) if judge is not None else None
