"""Every check of one environment, in order, and the checks that an engine makes in the background."""

from __future__ import annotations

import asyncio
import contextlib
import os
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import TracebackType
from typing import Any

from marlaas.plugins.messages import Answer, Ask

from ...devices import own_cores
from ...errors import ConfigError, EnvironmentFailure, MarlaasError
from ...trajectories import Failure, Split
from ..lease import Lease
from ..plugin import said
from ..process.child import Child
from ..process.wire import Watched
from ..protocol import EnvironmentInfo, EpisodeOutcome, EpisodeSpec
from ..served_version import ServedVersion
from ..service import EnvironmentService
from . import (
    load,
    prompts as determinism,
    prompts as instances,
    prompts as leaks,
    prompts as lengths,
    prompts as rows,
    prompts as variety,
    replies,
)
from .finding import LEVELS, Finding
from .prompts import Draw, Ruler, draws
from .replies import EMPTY, JUNK, play
from .subject import Pace, Subject, limit_of

# A version of an environment in a process of its own, to be checked.
#
# Junk may kill that process or block it: no group plays there, and its deaths are not reported. It runs at a low
# priority, so that it does not slow the episodes of groups down.

NICENESS = 15


class SubjectProcess:
    """A ``subject.Subject`` during its ``async with`` block, for which the lease must be held."""

    def __init__(self, lease: Lease) -> None:
        self.config = lease.config
        self.timeout = lease.declared.timeout
        self.agents = lease.declared.agents
        self.ranked = lease.declared.ranked
        self.name = lease.declared.name
        self.movable = lease.declared.own and not lease.declared.scored
        self._lease = lease
        self._serving: ServedVersion | None = None
        self._child: Child | None = None
        """What is looked at."""
        self._calmed: set[int] = set()

    async def __aenter__(self) -> SubjectProcess:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._stop()

    async def renew(self) -> float:
        """See ``subject.Subject``."""
        await self._stop()
        began = time.monotonic()
        self._serving = self._lease.serving.apart()
        await self._serving.warm()
        return time.monotonic() - began

    async def play(self, spec: EpisodeSpec, answer: Answer) -> EpisodeOutcome:
        """See ``subject.Subject``."""
        serving = self._serving
        if serving is None or serving.health.resting is not None:  # it died too often, which was reported
            await self.renew()
            return await self.play(spec, answer)
        self._calm(serving.pids)
        return await serving.play(self._lease.declared.name, replace(spec, data=self._lease.data), answer)

    async def watch(self) -> None:
        """See ``subject.Subject``."""
        if self._serving is None:
            await self.renew()
        assert self._serving is not None
        self._child = await self._serving.watch()

    async def watched(self) -> Watched:
        """See ``subject.Subject``."""
        child, self._child = self._child, None
        return await child.watched() if child is not None else Watched()

    async def _stop(self) -> None:
        serving, self._serving = self._serving, None
        if serving is not None:
            await serving.stop("its check is over")

    def _calm(self, pids: Iterable[int]) -> None:
        for pid in set(pids) - self._calmed:
            with contextlib.suppress(OSError):  # it may just have ended
                os.setpriority(os.PRIO_PGRP, pid, NICENESS)
            self._calmed.add(pid)


# Every check of one environment, in order; findings are sorted, the worst first.
#
# What a check found may spare the next one its work; what they cost together is bounded.

FEW = 3
"""Odd replies of a second's look."""


@dataclass(frozen=True)
class Scope:
    """How much is checked, and how long that may take."""

    prompts: int = 64
    """Instances of each split."""
    seconds: float = 60.0
    """Time after which the checks end; one episode may come on top."""
    pause: float = 0.0
    """Seconds between two episodes in which others have the processor."""
    together: int = 64
    """Episodes that are played at once."""
    alive: int = load.ALIVE
    """Episodes that a task has alive at once: what that costs is told."""
    cores: int = field(default_factory=lambda: len(own_cores()) or 1)
    """Of this machine."""
    ruler: Ruler | None = None
    """Measures prompts as the base that is trained does, where one is known."""


async def check(
    service: EnvironmentService,
    name: str,
    config: Mapping[str, Any] | None = None,
    scope: Scope | None = None,
    data: Mapping[str, Any] | None = None,
) -> list[Finding]:
    """Check an environment of ``service`` under ``config``; its defaults fill what is not given.

    ``data``: rows in place of its own (``Source.record``).

    Raises ``EnvironmentMissing`` where there is none of that name. One that does not serve, or refuses the
    configuration, is a finding.
    """
    info = service.resolve(name)
    broken = [Finding("load", "error", _unserved(info, info.failure))] if info.failure else []
    if not info.version:
        return broken or [Finding("load", "error", f"{info.name} does not serve: it is {info.state}.")]
    if missing := unset(info, config or {}):
        return [*broken, Finding("config", "error", missing)]
    if info.rows == "task" and data is None:
        text = f"{info.name} has no rows of its own: name some as in `marlaas env check NAME --rows FILE`."
        return [*broken, Finding("config", "error", text)]
    try:
        with await service.bind(info.name, config=config or {}, data=data) as lease:
            return [*broken, *await check_version(lease, scope or Scope())]
    except ConfigError as error:
        return [*broken, Finding("config", "error", error.message)]
    except EnvironmentFailure as error:  # for one of several in a file, the same once more
        return broken or [Finding("load", "error", error.message)]


async def try_out(lease: Lease) -> list[Finding]:
    """What goes wrong whatever a model says, after a few odd replies to one instance: a second's look, before a task
    that plays the environment is queued. Raises ``BrokenPlugin`` where a process cannot be started."""
    async with SubjectProcess(lease) as subject:
        await subject.renew()
        played = [await play(subject, 0, reply, Pace(limit_of(subject))) for reply in JUNK[:FEW]]
    asked = [one for one in played if one.outcome is None or one.outcome.status != "skip"]
    return [finding for finding in replies.judge_junk(asked, subject.name) if finding.level != "note"]


def _unserved(info: EnvironmentInfo, failure: Failure) -> str:
    what = "does not load" if info.state in ("broken", "stale") else f"is {info.state}"
    return f"{info.name} {what}: {said(failure)}."


def unset(info: EnvironmentInfo, config: Mapping[str, Any]) -> str:
    """Which required parameters are not given, in one sentence; empty where none is missing."""
    missing = [one for one in info.parameters if one.required and one.name not in config]
    if not missing:
        return ""
    names = " and ".join(f"{one.name!r} ({one.type})" for one in missing)
    options = " ".join(f"{one.name}=…" for one in missing)
    return f"{info.name} needs {names}: give it as in `marlaas env check NAME --config {options}`."


async def check_version(lease: Lease, scope: Scope) -> list[Finding]:
    """Check the version that ``lease`` holds, under the configuration that it was bound for."""
    async with SubjectProcess(lease) as subject:
        found = await examine(subject, scope)
    return _sorted([*found, *rows.judge_rows(await rows.observe_rows(lease))])


async def examine(subject: Subject, scope: Scope, clock: Callable[[], float] = time.monotonic) -> list[Finding]:
    """Play episodes, then judge them; raises ``BrokenPlugin`` where a fresh process cannot be started."""
    pace = Pace(scope.seconds, scope.pause, clock)
    start = await subject.renew()
    splits: tuple[Split, Split] = ("train", "eval")
    wanted = [(split, index) for index in range(scope.prompts) for split in splits]
    seen = await draws(subject, wanted, pace, share=0.3)
    train, held_out = ([draw for draw in seen if draw.split == split] for split in splits)
    usable = [draw.index for draw in train if draw.prompt is not None]
    if not usable:
        return _sorted(instances.judge_instances(seen))
    distant = await draws(subject, leaks.far(), pace, share=0.4)
    repeats = await determinism.observe_determinism(subject, seen, pace, share=0.5)
    measured = await lengths.observe_lengths(seen, scope.ruler, pace, share=0.55)
    odd = await replies.observe_junk(subject, usable, _offers_tools(train), pace, share=0.75)
    constant = await replies.observe_baseline(subject, usable, replies.failing(odd), pace, share=0.95)
    several = any(len(one.agents) > 1 for one in constant)
    contested = await replies.contests(subject, usable, pace, share=0.97) if several else []
    repeated = await replies.observe_rewards(subject, [*odd, *constant], pace, share=1.0)
    alone = constant or odd
    calm = next((one.reply for one in alone if one.reply not in replies.failing(odd)), EMPTY)
    together = await load.observe_crowd(subject, usable, calm, scope.together, alone, pace)
    unfinished = await load.observe_grading(subject, together, scope.alive, pace)
    turns = [seconds for one in constant or odd for seconds in one.turns]  # by then all processes run
    return _sorted(
        [
            *instances.judge_instances([*seen, *distant]),
            *determinism.judge_determinism(repeats),
            *variety.judge_variety(seen),
            *leaks.judge_leaks(train, held_out, distant),
            *lengths.judge_lengths(measured),
            *replies.judge_junk(odd, subject.name),
            *replies.judge_agents([*odd, *constant, *contested], subject.agents),
            *replies.judge_baseline(constant, subject.ranked, contested),
            *replies.judge_rewards([*odd, *constant, *contested], repeated, subject.ranked),
            *load.judge_crowd(together, scope.alive),
            *load.judge_grading(together, unfinished, subject.name, scope.alive, scope.cores),
            *replies.judge_sandboxes([*odd, *constant, *together.played]),
            *load.judge_latency(start, seen[0].seconds, turns),
            *_cut(len(seen), len(wanted), scope),
        ]
    )


def _offers_tools(seen: list[Draw]) -> bool:
    return any(isinstance(draw.reached, Ask) and draw.reached.tools for draw in seen)


def _cut(seen: int, wanted: int, scope: Scope) -> list[Finding]:
    if seen == wanted:
        return []
    text = f"Only {seen} of {wanted} instances were drawn, as they are slow or long: what is said here rests on few."
    return [Finding("time", "note", text)]


def _sorted(findings: list[Finding]) -> list[Finding]:
    return sorted(findings, key=lambda finding: LEVELS.index(finding.level))


# Checks promoted versions in the background, one environment after the other, unless a newer version comes.
#
# A version is checked once.

SETTLED = 2.0
"""Seconds after a promotion before it is checked: an author saves again and again."""
PROMPTS, SECONDS, REST, CROWD = 32, 30.0, 0.01, 16

Known = Callable[[str, str], bool]
"""Says whether the findings of an environment's version are known."""
Found = Callable[[str, str, list[Finding]], None]
"""Takes the findings of an environment's version."""


class Background:
    """Run it beside the service; tell it of every plugin that changed."""

    def __init__(
        self,
        service: EnvironmentService,
        scope: Scope,
        known: Known,
        found: Found,
        spare: Collection[Path] = (),
        settled: float = SETTLED,
    ) -> None:
        """``spare``: folders whose plugins are not checked."""
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
        """Whether something is checked, or waits to be."""
        return bool(self._waiting) or self._checking is not None

    def changed(self, plugin: str) -> None:
        """A version was promoted, or the plugin went away: the check of an older one ends here."""
        self._waiting[plugin] = None
        self._woken.set()
        if self._current == plugin and self._checking is not None:
            self._checking.cancel()

    async def run(self) -> None:
        """Check until cancelled."""
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
            if info.name.partition("/")[0] == plugin and info.version and not self._spared(info):
                await self._check_one(info)

    async def _check_one(self, info: EnvironmentInfo) -> None:
        if self._known(info.name, info.version):
            return
        if missing := unset(info, {}):
            self._found(info.name, info.version, [Finding("config", "note", missing)])
            return
        try:
            held = await self._service.bind(info.name, info.version, {})
        except MarlaasError:
            return  # it rests, as its state says, but the version may work later
        try:
            with held as lease:
                self._found(info.name, info.version, await check_version(lease, self._scope))
        except MarlaasError as error:  # no fresh process of it can be started
            self._found(info.name, info.version, [Finding("load", "error", error.message)])
        except Exception as error:  # a bug in a check must not end the engine
            text = f"The check itself failed: {type(error).__name__}: {error}."
            self._found(info.name, info.version, [Finding("check", "note", text)])

    def _spared(self, info: EnvironmentInfo) -> bool:
        return any(Path(info.path).is_relative_to(folder) for folder in self._spare)
