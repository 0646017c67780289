"""Runs one episode with a program: from its task to its reward."""

from __future__ import annotations

import asyncio
import functools
import hashlib
import inspect
import json
import os
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from ..blocking import BlockingEpisode, wait_on
from ..environment import Environment
from ..episode import Episode
from ..json_values import not_json
from ..removal import remove_folder
from ..rewards import DEFAULT_AGENT
from .folder import Placed, Workplace, fill, listed, workplace
from .reward_file import LARGEST, read_text, reward_of
from .run import NOT_RUN, ProgramFailed, ProgramRun, places, run
from .words import Addresses, filled

EXIT = "exit"
"""The reward that is 1 if the exit code is 0, and else 0."""
KILLED = 128 + 9
"""Ended by SIGKILL: the system does so when memory ends, and it is no signal for learning."""
_LONGEST_VARIABLE = 100_000
"""Bytes of a task that go into a variable; Linux takes 128 KiB."""


@dataclass(frozen=True)
class Program:
    """A program as its author declares it."""

    name: str
    words: tuple[str, ...]
    files: tuple[Placed, ...]
    environment: Mapping[str, str]
    stdin: str
    reward: str
    """``exit``, the name of a file, or empty for a function or none."""
    exit_codes: tuple[int, ...]
    agents: tuple[str, ...]

    @property
    def templates(self) -> tuple[str, ...]:
        return (*self.words, *self.environment.values(), self.stdin)


Function = Callable[..., Any]


class Scored:
    """True if the environment has a score function; that is declared after it."""

    def __init__(self) -> None:
        self._environment: Environment | None = None

    def by(self, environment: Environment) -> Environment:
        self._environment = environment
        return environment

    def __bool__(self) -> bool:
        return self._environment is not None and self._environment.scorer is not None


async def played(
    program: Program,
    scored: Scored,
    prepare: Function | None,
    judge: Function | None,
    ep: Episode,
    settings: Mapping[str, Any],
) -> object:
    """The reward of an episode; None if a score function in another process gives it.

    ``prepare``: is called before the program, and returns ``{prompt}``. ``judge``: gets its end.
    """
    if not (program.reward or judge or scored):
        name = program.name
        raise TypeError(
            f'{name} says no reward: give reward="{EXIT}", the name of a file, a function of the program\'s end, or '
            f"declare a function under @{name}.score"
        )
    prompt = await called(ep, prepare, (), settings) if prepare is not None else None
    place, known = _place(), places()
    try:
        with ep._queueing():
            await known.acquire()
        try:
            ended = await _run(program, ep, place, prompt)
        finally:
            known.release()
        ended = replace(ended, files=await asyncio.to_thread(listed, place.work))
        ep.log(exit_code=ended.exit_code, program_seconds=ended.seconds)
        if not ended.ok:
            ep.log(stderr=ended.stderr[-1000:])
        return await _worth(program, ep, ended, judge, settings)
    finally:
        await asyncio.to_thread(remove_folder, place.top)


async def called(ep: Episode, function: Function, given: tuple[object, ...], settings: Mapping[str, Any]) -> Any:
    """The result of an author's function; a plain one runs in a thread, with an episode that blocks in asks."""
    if inspect.iscoroutinefunction(function):
        return await function(ep, *given, **settings)
    apart = ep._tool_runner.apart or asyncio.to_thread
    blocking = BlockingEpisode(ep, wait_on(asyncio.get_running_loop()))
    return await apart(functools.partial(function, blocking, *given, **settings))


def _place() -> Workplace:
    try:
        return workplace()
    except OSError as error:
        raise ProgramFailed(f"no folder can be made for the program: {error}") from None


async def _run(program: Program, ep: Episode, place: Workplace, prompt: object) -> ProgramRun:
    task = _task(program, ep)
    await asyncio.to_thread(fill, place, program.files, task)
    ours, addresses = await _addresses(program, ep)
    values = {
        "prompt": _prompt(ep.task) if prompt is None else prompt,
        "task": ep.task,
        "config": ep.config,
        "index": ep.index,
        "seed": seed_of(ep),
        "split": ep.split,
        "url": addresses,
        "key": ours["OPENAI_API_KEY"],
    }
    variables = {
        **os.environ,
        "PATH": os.pathsep.join((os.path.dirname(sys.executable), os.environ.get("PATH", os.defpath))),
        "TMPDIR": place.temporary,
        **ours,
        "MARLAAS_TASK": task if len(task) <= _LONGEST_VARIABLE else "",
        "MARLAAS_TASK_FILE": place.task,
        "MARLAAS_CONFIG": json.dumps(ep.config),
        **{name: filled(value, values) for name, value in program.environment.items()},
    }
    words = [filled(word, values) for word in program.words]
    return await run(words, place.work, variables, filled(program.stdin, values))


async def _addresses(program: Program, ep: Episode) -> tuple[dict[str, str], Addresses]:
    names = program.agents or (DEFAULT_AGENT,)
    found = {name: await ep.endpoint(name) for name in names}
    first = found[names[0]]
    several = {name: {"url": endpoint.url, "key": endpoint.key} for name, endpoint in found.items()}
    variables = {**first.environment(), "MARLAAS_ENDPOINTS": json.dumps(several)}
    return variables, Addresses(first.url, {name: endpoint.url for name, endpoint in found.items()})


def _task(program: Program, ep: Episode) -> str:
    if fault := not_json(ep.task):
        raise TypeError(f"the program {program.name} reads its task as JSON, which cannot hold it: {fault}")
    return json.dumps(ep.task)  # ASCII: its length is its bytes


def _prompt(task: object) -> str:
    """The default prompt of a row: the row itself, or its field ``prompt``."""
    if isinstance(task, Mapping):
        task = task.get("prompt", "")
    return task if isinstance(task, str) else ""


def seed_of(ep: Episode) -> int:
    """A whole number below 2 ** 31 that the samples of a group share."""
    return int.from_bytes(hashlib.sha256(f"{ep._draw}/program".encode()).digest()[:4], "big") >> 1


async def _worth(
    program: Program, ep: Episode, ended: ProgramRun, judge: Function | None, settings: Mapping[str, Any]
) -> object:
    if ended.exit_code in NOT_RUN or (ended.exit_code == KILLED and not ended.flooded):
        raise ended.failure()
    if program.reward == EXIT:
        return float(ended.ok)
    if program.reward:
        text = await asyncio.to_thread(read_text, ended.folder, program.reward, LARGEST)
        if text is not None:
            return reward_of(text, program.reward)
        raise ended.failure(f"and left no {program.reward}")
    if ended.exit_code not in program.exit_codes:
        raise ended.failure()
    return await called(ep, judge, (ended,), settings) if judge is not None else None
