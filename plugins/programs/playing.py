"""Runs one episode with a program."""

from __future__ import annotations

import asyncio
import functools
import hashlib
import inspect
import json
import os
import shutil
import sys
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path, PurePath
from tempfile import mkdtemp
from typing import TYPE_CHECKING, Any

from ..blocking import BlockingEpisode, wait_on
from ..episode import Episode
from ..json_values import not_json
from ..rewards import DEFAULT_AGENT
from ..sandbox import remove_folder
from .run import (
    CLIENT_FAILED,
    FIXED,
    LARGEST,
    MOUNT,
    NOT_RUN,
    ProgramFailed,
    ProgramRun,
    container_of,
    mount_place,
    mounts,
    places,
    pull,
    read_text,
    remove,
    reward_of,
    run,
    run_words,
)
from .words import Addresses, filled

if TYPE_CHECKING:
    from .harbor import Task

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
