"""Checks one environment, on request or in the background."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Iterable, Mapping
from contextlib import nullcontext
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

from marlaas.plugins.messages import Ask

from ...errors import ConfigError, EnvironmentFailure, MarlaasError
from ...trajectories import Split
from ..plugin import said
from ..protocol import EnvironmentInfo
from ..served_version import Lease
from ..service import EnvironmentService
from .checks import CHECKS, Observed, check_instances, check_junk, check_program, failing, far
from .finding import LEVELS, Finding
from .subject import CONSTANTS, JUNK, OK, Pace, Serve, Subject, draw_again, draws, play, reply_again, reply_junk

ODD = 3
SETTLED = 2.0
"""Seconds after a promotion: authors save repeatedly."""


@dataclass(frozen=True)
class Scope:
    """Extent and time of a check."""

    prompts: int = 64
    seconds: float = 60.0
    pause: float = 0.0
    """Seconds between two episodes."""


BACKGROUND = Scope(32, 30.0, 0.01)
"""Of checks next to training."""


async def check(
    service: EnvironmentService,
    name: str,
    config: Mapping[str, Any] | None = None,
    scope: Scope | None = None,
    data: Mapping[str, Any] | None = None,
    serve: Serve = nullcontext,
) -> list[Finding]:
    """``data``: rows in place of its own (``Source.record``); ``serve`` gives programs an address. Raises
    ``EnvironmentMissing``; other failures are findings."""
    info = service.resolve(name)
    state = "does not load" if info.state in ("broken", "stale") else f"is {info.state}"
    broken = [Finding("load", "error", f"{info.name} {state}: {said(info.failure)}.")] if info.failure else []
    if not info.version:
        return broken or [Finding("load", "error", f"{info.name} does not serve: it is {info.state}.")]
    problem = unset(info, config or {})
    if not problem and info.rows == "task" and data is None:
        problem = f"{info.name} has no rows of its own: name some as in `marlaas env check NAME --rows FILE`."
    if problem:
        return [*broken, Finding("config", "error", problem)]
    try:
        with await service.bind(info.name, config=config or {}, data=data) as lease:
            return [*broken, *await check_version(lease, scope or Scope(), serve)]
    except ConfigError as error:
        return [*broken, Finding("config", "error", error.message)]
    except EnvironmentFailure as error:
        return broken or [Finding("load", "error", error.message)]


async def try_out(lease: Lease, serve: Serve = nullcontext) -> list[Finding]:
    """Failures after a few odd replies to one instance. Raises ``BrokenPlugin``."""
    async with Subject(lease, serve) as subject:
        if lease.declared.program:
            return await _try_program(subject, 0)
        played = [await play(subject, 0, reply, Pace(subject.timeout)) for reply in JUNK[:ODD]]
    asked = [episode for episode in played if episode.outcome.status != "skip"]
    return [found for found in check_junk(Observed(odd=asked)) if found.level != "note"]


def unset(info: EnvironmentInfo, config: Mapping[str, Any]) -> str:
    """Missing required parameters, in one sentence."""
    missing = [parameter for parameter in info.parameters if parameter.required and parameter.name not in config]
    if not missing:
        return ""
    names = " and ".join(f"{parameter.name!r} ({parameter.type})" for parameter in missing)
    options = " ".join(f"{parameter.name}=…" for parameter in missing)
    return f"{info.name} needs {names}: give it as in `marlaas env check NAME --config {options}`."


async def _try_program(subject: Subject, index: int) -> list[Finding]:
    """Once: each start may take seconds."""
    played = await play(subject, index, OK, Pace(subject.timeout))
    return list(check_program(played))


async def check_version(lease: Lease, scope: Scope, serve: Serve = nullcontext) -> list[Finding]:
    """Run episodes, then judge them; worst findings first. Raises ``BrokenPlugin``."""
    async with Subject(lease, serve) as subject:
        seen = Observed(subject.ranked)
        pace = Pace(scope.seconds, scope.pause)
        seen.start = await subject.renew()
        instances: list[tuple[Split, int]] = [
            (split, index) for index in range(scope.prompts) for split in ("train", "eval")
        ]
        seen.draws = await draws(subject, instances, pace, share=0.3)
        train = [draw for draw in seen.draws if draw.split == "train"]
        usable = [draw.index for draw in train if draw.prompt is not None]
        if not usable:
            programs = [draw.index for draw in train if isinstance(draw.reached, Ask)]
            served = await _try_program(subject, programs[0]) if programs and serve is not nullcontext else []
            return _sorted([*check_instances(seen), *served])
        seen.distant = await draws(subject, far(), pace, share=0.4)
        seen.repeats = await draw_again(subject, seen.draws, pace, share=0.5)
        tools = any(isinstance(draw.reached, Ask) and draw.reached.tools for draw in train)
        seen.odd = await reply_junk(subject, usable, tools, pace, share=0.75)
        plan = product(usable, [reply for reply in CONSTANTS if reply not in failing(seen.odd)])
        seen.constant = [await play(subject, index, reply, pace) async for index, reply in pace.take(plan, 0.95)]
        seen.repeated = await reply_again(subject, seen.played, pace, share=1.0)
        found = [finding for judge in CHECKS for finding in judge(seen)]
        if len(seen.draws) < len(instances):
            some = f"{len(seen.draws)} of {len(instances)}"
            text = f"Only {some} instances were drawn, as they are slow or long: what is said here rests on few."
            found.append(Finding("time", "note", text))
        return _sorted(found)


def _sorted(findings: Iterable[Finding]) -> list[Finding]:
    return sorted(findings, key=lambda finding: LEVELS.index(finding.level))


class Background:
    """Checks promoted versions in turn; a newer version ends the older's check."""

    def __init__(
        self,
        service: EnvironmentService,
        scope: Scope,
        known: Callable[[str, str], bool],
        found: Callable[[str, str, list[Finding]], None],
        spare: Collection[Path] = (),
        settled: float = SETTLED,
        serve: Serve = nullcontext,
    ) -> None:
        """``known``: True if a version has findings; ``found`` takes them. ``spare``: unchecked folders. ``serve`` as
        in ``check``."""
        self._service = service
        self._scope = scope
        self._known = known
        self._found = found
        self._spare = tuple(spare)
        self._settled = settled
        self._serve = serve
        self._checks: dict[str, asyncio.Task[None]] = {}
        self._turn = asyncio.Lock()

    @property
    def busy(self) -> bool:
        return not all(check.done() for check in self._checks.values())

    def changed(self, plugin: str) -> None:
        if before := self._checks.get(plugin):
            before.cancel()
        self._checks[plugin] = asyncio.get_running_loop().create_task(self._check(plugin))

    async def stop(self) -> None:
        for check in self._checks.values():
            check.cancel()
        await asyncio.gather(*self._checks.values(), return_exceptions=True)

    async def _check(self, plugin: str) -> None:
        await asyncio.sleep(self._settled)
        async with self._turn:
            for info in self._service.infos():
                spared = any(Path(info.path).is_relative_to(folder) for folder in self._spare)
                served = info.name.partition("/")[0] == plugin and info.version
                if served and not spared and not self._known(info.name, info.version):
                    findings = await self._findings(info)
                    if findings is not None:
                        self._found(info.name, info.version, findings)

    async def _findings(self, info: EnvironmentInfo) -> list[Finding] | None:
        """None for a resting version: it may work later."""
        if missing := unset(info, {}):
            return [Finding("config", "note", missing)]
        try:
            lease = await self._service.bind(info.name, info.version, {})
        except MarlaasError:
            return None
        try:
            with lease:
                return await check_version(lease, self._scope, self._serve)
        except MarlaasError as error:
            return [Finding("load", "error", error.message)]
        except Exception as error:  # a bug in a check must not end the engine
            return [Finding("check", "note", f"The check itself failed: {type(error).__name__}: {error}.")]
