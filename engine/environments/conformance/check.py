"""Every check of one environment, in order; findings are sorted, the worst first.

What a check found may spare the next one its work; what they cost together is bounded.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from marlaas.plugins.messages import Ask

from ...devices import own_cores
from ...errors import ConfigError, EnvironmentFailure
from ...trajectories import Failure, Split
from ..lease import Lease
from ..plugin import said
from ..protocol import EnvironmentInfo
from ..service import EnvironmentService
from . import (
    agents,
    baseline,
    crowd,
    determinism,
    grading,
    instances,
    junk,
    latency,
    leaks,
    lengths,
    rewards,
    rows,
    sandboxes,
    variety,
)
from .draws import Draw, draws
from .finding import LEVELS, Finding
from .lengths import Ruler
from .pace import Pace
from .plays import play
from .replies import EMPTY, JUNK
from .subject import Subject, limit_of
from .subject_process import SubjectProcess

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
    alive: int = crowd.ALIVE
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
    return [one for one in junk.judge(played, subject.name) if one.level != "note"]


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
    return _sorted([*found, *rows.judge(await rows.look(lease))])


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
        return _sorted(instances.judge(seen))
    distant = await draws(subject, leaks.far(), pace, share=0.4)
    repeats = await determinism.look(subject, seen, pace, share=0.5)
    measured = await lengths.look(seen, scope.ruler, pace, share=0.55)
    odd = await junk.look(subject, usable, _offers_tools(train), pace, share=0.75)
    constant = await baseline.look(subject, usable, junk.failing(odd), pace, share=0.95)
    several = any(len(one.agents) > 1 for one in constant)
    contested = await baseline.contests(subject, usable, pace, share=0.97) if several else []
    repeated = await rewards.look(subject, [*odd, *constant], pace, share=1.0)
    alone = constant or odd
    calm = next((one.reply for one in alone if one.reply not in junk.failing(odd)), EMPTY)
    together = await crowd.look(subject, usable, calm, scope.together, alone, pace)
    unfinished = await grading.look(subject, together, scope.alive, pace)
    turns = [seconds for one in constant or odd for seconds in one.turns]  # by then all processes run
    return _sorted(
        [
            *instances.judge([*seen, *distant]),
            *determinism.judge(repeats),
            *variety.judge(seen),
            *leaks.judge(train, held_out, distant),
            *lengths.judge(measured),
            *junk.judge(odd, subject.name),
            *agents.judge([*odd, *constant, *contested], subject.agents),
            *baseline.judge(constant, subject.ranked, contested),
            *rewards.judge([*odd, *constant, *contested], repeated, subject.ranked),
            *crowd.judge(together, scope.alive),
            *grading.judge(together, unfinished, subject.name, scope.alive, scope.cores),
            *sandboxes.judge([*odd, *constant, *together.played]),
            *latency.judge(start, seen[0].seconds, turns),
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
