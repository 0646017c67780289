"""Runs the checks of one environment, on request or in the background."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from marlaas.plugins.messages import Ask

from ...errors import ConfigError, EnvironmentFailure, MarlaasError
from ...trajectories import Split
from ..plugin import said
from ..protocol import DataFacts, EnvironmentInfo
from ..served_version import Lease
from ..service import EnvironmentService
from . import checks
from .checks import ALIVE, Ruler
from .finding import LEVELS, Finding
from .subject import EMPTY, JUNK, Pace, Subject, draws, play

ODD = 3
SETTLED = 2.0
"""Seconds after a promotion before its check: authors save again and again."""
PROMPTS, SECONDS, REST, CROWD = 32, 30.0, 0.01, 16


@dataclass(frozen=True)
class Scope:
    """How much is checked, and how long it may take."""

    prompts: int = 64
    seconds: float = 60.0
    pause: float = 0.0
    together: int = 64
    alive: int = ALIVE
    """Episodes that a task has alive at once, for the cost of a crowd."""
    ruler: Ruler | None = None
    """Measures prompts as the trained base does, if one is known."""


async def check(
    service: EnvironmentService,
    name: str,
    config: Mapping[str, Any] | None = None,
    scope: Scope | None = None,
    data: Mapping[str, Any] | None = None,
) -> list[Finding]:
    """Check an environment of ``service`` under ``config``, filled with its defaults.

    ``data``: rows in place of its own (``Source.record``).

    Raises ``EnvironmentMissing``. An environment that does not serve, or refuses the configuration, is a finding.
    """
    info = service.resolve(name)
    broken = [Finding("load", "error", f"{_unserved(info)}: {said(info.failure)}.")] if info.failure else []
    if not info.version:
        return broken or [Finding("load", "error", f"{info.name} does not serve: it is {info.state}.")]
    problem = unset(info, config or {})
    if not problem and info.rows == "task" and data is None:
        problem = f"{info.name} has no rows of its own: name some as in `marlaas env check NAME --rows FILE`."
    if problem:
        return [*broken, Finding("config", "error", problem)]
    try:
        with await service.bind(info.name, config=config or {}, data=data) as lease:
            return [*broken, *await check_version(lease, scope or Scope())]
    except ConfigError as error:
        return [*broken, Finding("config", "error", error.message)]
    except EnvironmentFailure as error:
        return broken or [Finding("load", "error", error.message)]


async def try_out(lease: Lease) -> list[Finding]:
    """What fails after a few odd replies to one instance: about a second, before a task is queued.

    Raises ``BrokenPlugin`` if a process cannot be started.
    """
    async with Subject(lease) as subject:
        await subject.renew()
        played = [await play(subject, 0, reply, Pace(subject.timeout)) for reply in JUNK[:ODD]]
    asked = [one for one in played if one.status != "skip"]
    return [finding for finding in checks.check_junk(asked, subject.name) if finding.level != "note"]


def _unserved(info: EnvironmentInfo) -> str:
    return f"{info.name} {'does not load' if info.state in ('broken', 'stale') else f'is {info.state}'}"


def unset(info: EnvironmentInfo, config: Mapping[str, Any]) -> str:
    """The required parameters that are not given, in one sentence; empty if none is missing."""
    missing = [one for one in info.parameters if one.required and one.name not in config]
    if not missing:
        return ""
    names = " and ".join(f"{one.name!r} ({one.type})" for one in missing)
    options = " ".join(f"{one.name}=…" for one in missing)
    return f"{info.name} needs {names}: give it as in `marlaas env check NAME --config {options}`."


async def check_version(lease: Lease, scope: Scope) -> list[Finding]:
    """Check the version and configuration of ``lease``; the worst findings come first."""
    async with Subject(lease) as subject:
        found = await examine(subject, scope)
    try:
        facts = await lease.serving.facts(lease.declared.name, lease.data, survey=True)
    except EnvironmentFailure:  # the episodes have shown it
        facts = DataFacts()
    return _sorted([*found, *checks.check_rows(facts)])


async def examine(subject: Subject, scope: Scope, clock: Callable[[], float] = time.monotonic) -> list[Finding]:
    """Run episodes, then judge them; raises ``BrokenPlugin`` if a fresh process cannot be started."""
    pace = Pace(scope.seconds, scope.pause, clock)
    start = await subject.renew()
    splits: tuple[Split, Split] = ("train", "eval")
    instances = [(split, index) for index in range(scope.prompts) for split in splits]
    seen = await draws(subject, instances, pace, share=0.3)
    train, held_out = ([draw for draw in seen if draw.split == split] for split in splits)
    usable = [draw.index for draw in train if draw.prompt is not None]
    if not usable:
        return _sorted(checks.check_instances(seen))
    distant = await draws(subject, checks.far(), pace, share=0.4)
    repeats = await checks.draw_again(subject, seen, pace, share=0.5)
    lengths = await checks.check_lengths(seen, scope.ruler, pace, share=0.55)
    tools = any(isinstance(draw.reached, Ask) and draw.reached.tools for draw in train)
    odd = await checks.reply_junk(subject, usable, tools, pace, share=0.75)
    failing = checks.failing(odd)
    constant = await checks.reply_constants(subject, usable, failing, pace, share=0.95)
    several = any(len(one.agents) > 1 for one in constant)
    contested = await checks.contests(subject, usable, pace, share=0.97) if several else []
    played = [*odd, *constant, *contested]
    repeated = await checks.reply_again(subject, [*odd, *constant], pace, share=1.0)
    alone = constant or odd
    calm = next((one.reply for one in alone if one.reply not in failing), EMPTY)
    crowd = await checks.run_crowd(subject, [one for one in alone if one.reply == calm], scope.together, pace)
    found = [
        *checks.check_instances([*seen, *distant]),
        *checks.check_determinism(repeats),
        *checks.check_variety(seen),
        *checks.check_leaks(train, held_out, distant),
        *lengths,
        *checks.check_junk(odd, subject.name),
        *checks.check_agents(played, subject.agents),
        *checks.check_baseline(constant, subject.ranked, contested),
        *checks.check_rewards(played, repeated, subject.ranked),
        *checks.check_crowd(crowd, scope.alive),
        *(checks.check_grading(alone, subject.name, scope.alive) if subject.movable else ()),
        *checks.check_sandbox([*odd, *constant, *crowd.played]),
        *checks.check_latency(start, seen[0].seconds, [seconds for one in alone for seconds in one.turns]),
    ]
    if len(seen) < len(instances):
        text = f"Only {len(seen)} of {len(instances)} instances were drawn, as they are slow or long: what is said here"
        found.append(Finding("time", "note", f"{text} rests on few."))
    return _sorted(found)


def _sorted(findings: list[Finding]) -> list[Finding]:
    return sorted(findings, key=lambda finding: LEVELS.index(finding.level))


class Background:
    """Checks promoted versions, each once, one after the other; a newer version replaces an older one."""

    def __init__(
        self,
        service: EnvironmentService,
        scope: Scope,
        known: Callable[[str, str], bool],
        found: Callable[[str, str, list[Finding]], None],
        spare: Collection[Path] = (),
        settled: float = SETTLED,
    ) -> None:
        """``known``: True if an environment's version has findings; ``found`` takes them.

        ``spare``: folders that are not checked.
        """
        self._service = service
        self._scope = scope
        self._known = known
        self._found = found
        self._spare = tuple(spare)
        self._settled = settled
        self._waiting: dict[str, None] = {}
        self._current = ""
        self._checking: asyncio.Task[None] | None = None
        self._woken = asyncio.Event()

    @property
    def busy(self) -> bool:
        return bool(self._waiting) or self._checking is not None

    def changed(self, plugin: str) -> None:
        self._waiting[plugin] = None
        self._woken.set()
        if self._current == plugin and self._checking is not None:
            self._checking.cancel()

    async def run(self) -> None:
        while True:
            await self._woken.wait()
            self._woken.clear()
            while self._waiting:
                await asyncio.sleep(self._settled)
                self._current = next(iter(self._waiting))
                del self._waiting[self._current]
                self._checking = asyncio.get_running_loop().create_task(self._check(self._current))
                try:
                    await asyncio.wait((self._checking,))
                finally:
                    self._checking.cancel()
                    await asyncio.gather(self._checking, return_exceptions=True)
                    self._current, self._checking = "", None

    async def _check(self, plugin: str) -> None:
        for info in self._service.infos():
            spared = any(Path(info.path).is_relative_to(folder) for folder in self._spare)
            served = info.name.partition("/")[0] == plugin and info.version
            if served and not spared and not self._known(info.name, info.version):
                findings = await self._findings(info)
                if findings is not None:
                    self._found(info.name, info.version, findings)

    async def _findings(self, info: EnvironmentInfo) -> list[Finding] | None:
        """None for a version that rests: it may work later."""
        if missing := unset(info, {}):
            return [Finding("config", "note", missing)]
        try:
            lease = await self._service.bind(info.name, info.version, {})
        except MarlaasError:
            return None
        try:
            with lease:
                return await check_version(lease, self._scope)
        except MarlaasError as error:
            return [Finding("load", "error", error.message)]
        except Exception as error:  # a bug in a check must not end the engine
            return [Finding("check", "note", f"The check itself failed: {type(error).__name__}: {error}.")]
