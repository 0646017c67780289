"""Checks one environment, on request or in the background."""

from __future__ import annotations

import asyncio
import math
import statistics
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from itertools import product
from pathlib import Path
from typing import Any

from marlaas.plugins.messages import Ask

from ...errors import ConfigError, EnvironmentFailure, MarlaasError
from ...trajectories import Split
from ..plugin import said
from ..protocol import EnvironmentInfo, EpisodeOutcome
from ..served_version import Lease
from ..service import EnvironmentService
from .finding import LEVELS, Finding, Level
from .subject import (
    CONSTANTS,
    JUNK,
    OK,
    Canned,
    Draw,
    Pace,
    Played,
    Serve,
    Subject,
    draw_again,
    draws,
    play,
    reply_again,
    reply_junk,
)

ENOUGH_PROMPTS = 8
"""Held-out prompts; fewer may be in the order of train prompts by chance."""
MOST_SHARED = 0.3
RUN = 3
"""Pairs at equal distance: two splits are one sequence."""
HIGH, BROKEN = 0.5, 0.9
"""Mean scores of a constant answer: a warning, and nothing to learn."""
ALIKE = 0.05
FEW = 16
SCALE = 1.0
"""Largest absolute reward at which a mean score is a share of the possible one."""
LARGE = 100.0
SLOW_TURN, SLOWEST_TURN, SLOW_START = 1.0, 5.0, 10.0
"""Seconds of the median turn, the longest turn, and the start."""
_SHOWN, _BEFORE = 24, 8
"""Characters shown of a changed prompt, and before the change."""
_MOST_NAMED = 4

Repeats = tuple[Draw, Draw, Draw, Draw]
"""One instance: first, again, in a fresh process, and there for another sample."""


@dataclass
class Observed:
    """What was observed of an environment."""

    ranked: bool = False
    draws: list[Draw] = field(default_factory=list)
    distant: list[Draw] = field(default_factory=list)
    """Train instances of ``far``."""
    repeats: list[Repeats] = field(default_factory=list)
    odd: list[Played] = field(default_factory=list)
    constant: list[Played] = field(default_factory=list)
    repeated: list[tuple[Played, Played]] = field(default_factory=list)
    """Pairs with equal replies."""
    start: float = 0.0

    @property
    def played(self) -> list[Played]:
        return [*self.odd, *self.constant]


def check_instances(seen: Observed) -> Iterator[Finding]:
    """Every instance asks the model."""
    draws = [*seen.draws, *seen.distant]
    ended = [(draw, draw.reached) for draw in draws if isinstance(draw.reached, EpisodeOutcome)]
    failed = [(draw, outcome) for draw, outcome in ended if outcome.status not in ("ok", "skip")]
    silent = [draw for draw, outcome in ended if outcome.status == "ok"]
    number, skipped = len(draws), len(ended) - len(failed) - len(silent)
    if failed:
        draw, outcome = failed[0]
        reason = said(outcome.failure) if outcome.failure else f"it ended as {outcome.status}"
        some = _of(len(failed), number)
        yield Finding("instances", "error", f"{some} have no first prompt: {draw.place} ends before it: {reason}.")
    if silent and len(silent) + skipped == number:
        yield Finding(
            "instances",
            "error",
            f"It never calls `ep.ask`: {_of(len(silent), number)} end without it. Nothing can be learned from that.",
        )
    elif silent:
        yield Finding(
            "instances",
            "warning",
            f"{_of(len(silent), number)} end without asking the model, such as {silent[0].place}: nothing is learned"
            " from them. Raise Skip where a draw is unusable.",
        )
    if skipped:
        level: Level = "warning" if 2 * skipped > number else "note"
        yield Finding("instances", level, f"{_of(skipped, number)} are skipped by the environment.")


_CHANGES = (
    (
        0,
        1,
        "changes when it is drawn again",
        "Draw from ep.rng alone, not from the module random, the time, or what earlier episodes left behind.",
    ),
    (
        0,
        2,
        "changes in another process",
        "Draw from ep.rng alone: a process may begin with any instance, and forgets what the one before it knew.",
    ),
    (
        2,
        3,
        "differs between the members of a group",
        "Draw the task from ep.rng, which they share; ep.noise is for what happens after the first prompt.",
    ),
)
"""Two places in ``Repeats``, what is wrong if these differ, and what to do."""


def check_determinism(seen: Observed) -> Iterator[Finding]:
    """An instance is the same each time: an answer's advantage is relative to other answers to it."""
    reported: set[int] = set()  # what changes in one process changes in the next
    for left, right, change, advice in _CHANGES:
        changed = [
            number
            for number, draws in enumerate(seen.repeats)
            if number not in reported
            and isinstance(draws[left].reached, Ask)
            and draws[left].reached != draws[right].reached
        ]
        reported.update(changed)
        if changed:
            first, second = seen.repeats[changed[0]][left], seen.repeats[changed[0]][right]
            some = _of(len(changed), len(seen.repeats))
            yield Finding(
                "determinism",
                "error",
                f"The first prompt of {first.place} {change}: {_contrast(first, second)}. {some} do that. {advice}",
            )
    if seen.repeats and not reported:
        number = len(seen.repeats)
        yield Finding(
            "determinism",
            "note",
            f"{number} instances had the same first prompt again, in another process, and for another member.",
        )


def _contrast(first: Draw, second: Draw) -> str:
    if isinstance(second.reached, EpisodeOutcome):
        failure = second.reached.failure
        return f"it has none then ({said(failure) if failure else second.reached.status})"
    if first.text == second.text:
        return "its tools, limits or agent differ"
    pairs = zip(first.text, second.text, strict=False)
    same = next((place for place, (a, b) in enumerate(pairs) if a != b), min(len(first.text), len(second.text)))
    start = max(0, same - _BEFORE)
    dots = "…" if start else ""
    return ", then ".join(f"{dots + draw.text[start : start + _SHOWN]!r}" for draw in (first, second))


def far() -> Iterator[tuple[Split, int]]:
    """Train instances at which an eval split may begin: it continues the train split from a round number."""
    begins = {*(10**power for power in range(2, 9)), *(1 << power for power in (7, 10, 12, 16, 20, 24, 26))}
    return (("train", begin + offset) for begin in sorted(begins) for offset in range(RUN))


def check_leaks(seen: Observed) -> Iterator[Finding]:
    """Many shared prompts: too small a space; in order: both splits are one sequence.

    Training leaves out held-out prompts, so few cost nothing.
    """
    train = [draw for draw in seen.draws if draw.split == "train" and draw.prompt is not None]
    held_out = {draw.prompt: draw.index for draw in reversed(seen.draws) if draw.split == "eval" and draw.prompt}
    if not train or len(held_out) < 2:
        return  # a prompt that is always the same does not identify instances
    shared = sum(draw.prompt in held_out for draw in train)
    meeting = [(draw, held_out[draw.prompt]) for draw in (*train, *seen.distant) if draw.prompt in held_out]
    distance, times = Counter(draw.index - index for draw, index in meeting).most_common(1)[0] if meeting else (0, 0)
    if len(held_out) >= ENOUGH_PROMPTS and times >= RUN and times * 2 >= len(meeting):
        first, index = next((draw, index) for draw, index in meeting if draw.index - index == distance)
        moved = f", moved by {abs(distance):,}" if distance else ""
        yield Finding(
            "leaks",
            "error",
            f"The eval split is the train split{moved}: {first.place} has the first prompt of eval instance {index},"
            " and so on. Draw from ep.rng, which keeps the splits apart, or take ep.split into the seed.",
        )
    elif shared > MOST_SHARED * len(train):
        yield Finding(
            "leaks",
            "warning",
            f"{shared} of {len(train)} train prompts are held-out ones, too: the space of prompts is too small."
            " Training skips them; settings that make it larger are better.",
        )
    elif shared:
        yield Finding(
            "leaks", "note", f"{shared} of {len(train)} train prompts are held-out ones, too; training skips them."
        )
    else:
        yield Finding("leaks", "note", f"None of {len(train)} train prompts is one of {len(held_out)} held-out ones.")


def failing(played: Collection[Played]) -> frozenset[Canned]:
    """Replies that ended an episode without a reward."""
    return frozenset(episode.reply for episode in played if episode.score is None)


def check_junk(seen: Observed) -> Iterator[Finding]:
    """Any reply gives a timely end and a finite reward. One finding per kind."""
    tried = {episode.reply for episode in seen.odd}
    ways: dict[tuple[object, ...], list[Played]] = {}
    for episode in seen.odd:
        if episode.score is None:  # the message may quote the reply
            failure = episode.outcome.failure
            place = (failure.file, failure.line, failure.message.partition(":")[0]) if failure else ()
            ways.setdefault((episode.outcome.status, *place), []).append(episode)
    if seen.odd and not ways:
        yield Finding("junk", "note", f"{len(tried)} odd replies ended in time, and with a reward.")
    for (status, *_), episodes in ways.items():
        failure, labels = episodes[0].outcome.failure, list(dict.fromkeys(episode.reply.label for episode in episodes))
        replies = " or ".join(labels)
        if len(labels) == len(tried) > 1:
            replies = f"each of the {len(tried)} replies that were tried"
        elif len(labels) > _MOST_NAMED:
            replies = f"{', '.join(labels[: _MOST_NAMED - 1])} or {len(labels) - _MOST_NAMED + 1} others"
        reason = said(failure) if failure else "without a word"
        what = _JUNK.get(str(status), _FAILS).format(reason=reason)
        yield Finding("junk", "warning" if status == "skip" else "error", f"Given {replies}, {what}")


def check_program(played: Played) -> Iterator[Finding]:
    """A program asks the model, and ends with a reward."""
    failure = played.outcome.failure
    if played.agents and played.score is None:
        yield from check_junk(Observed(odd=[played]))
    elif not played.agents and failure is not None:
        yield Finding("program", "error", f"It ends before it asks the model: {said(failure)}.")
    elif not played.agents:
        yield Finding("program", "error", "The program never asks the model: nothing can be learned from that.")
    else:
        seconds, code = played.outcome.seconds, played.outcome.metrics.get("exit_code")
        ended = "it ended" if code is None else f"it ended with exit code {code:g}"
        earned = f"{ended} after {seconds:.1f} s, and earned {_earned(played)}"
        yield Finding("program", "note", f"Given {played.reply.label}, {earned}.")


_FAILS = "it fails: {reason}. A model says anything: give such a reply a reward, or raise Invalid."
_JUNK = {
    "timeout": "it ends too late: {reason}. Bound the work that a reply can cause.",
    "skip": "it raises Skip: the reply costs nothing. Skip is for unusable draws; a bad reply is Invalid, which has a"
    " reward.",
}
"""Texts by status of the episode."""


def constants(played: Sequence[Played]) -> list[tuple[float, Canned, int]]:
    """Mean score and instances of each constant answer, best first."""
    by_reply = [(reply, [episode.score for episode in played if episode.reply == reply]) for reply in CONSTANTS]
    scores = [(reply, [score for score in some if score is not None]) for reply, some in by_reply]
    return sorted(((statistics.fmean(s), reply, len(s)) for reply, s in scores if s), key=lambda mean: -mean[0])


def check_baseline(seen: Observed) -> Iterator[Finding]:
    """A policy must beat the best constant answer; not with several agents, since in a game one always wins."""
    means = constants(seen.constant)
    if not means or any(len(episode.agents) > 1 for episode in seen.constant):
        return
    mean, reply, instances = means[0]
    scores = [episode.score for episode in seen.constant if episode.score is not None]
    answer, many = reply.label[0].upper() + reply.label[1:], f"{instances} instance{'' if instances == 1 else 's'}"
    best = f"{answer} scores {mean:.2f} on average over {many}"
    if len(means) > 1 and not any(scores):
        yield Finding("baseline", "note", f"No constant answer earns anything: {len(means)} were tried.")
    elif mean < HIGH or instances < FEW:
        yield Finding("baseline", "note", f"{best}: the best of {len(means)} constant answers.")
    else:
        as_good = sum(other >= mean - ALIKE for other, _, _ in means) - 1
        others = f" {as_good} of {len(means) - 1} other constant answers do as well." if as_good else ""
        others += " In training the group's ranking counts instead." if seen.ranked else ""
        useless = mean >= BROKEN and max(map(abs, scores)) <= SCALE and not seen.ranked
        text = f"{best}: rewards can be had without reading the prompt.{others}"
        yield Finding("baseline", "error" if useless else "warning", text)


def check_rewards(seen: Observed) -> Iterator[Finding]:
    """Rewards have a usable size, equal replies earn the same, unreadable ones do not pay."""
    rewards = [reward for episode in seen.played for reward in episode.outcome.rewards.values()]
    if not rewards:
        return
    large = max(map(abs, rewards)) > LARGE
    advice = " Rewards of such a size make steps of that size: bring them to the order of 1." if large else ""
    yield Finding(
        "rewards",
        "warning" if large else "note",
        f"Canned replies earned {min(rewards):.3g} to {max(rewards):.3g}, {statistics.fmean(rewards):.3g} on average"
        f" (standard deviation {statistics.pstdev(rewards):.2g}).{advice}",
    )
    scored = [(episode.score, episode) for episode in seen.played if episode.score is not None]
    unreadable = [(score, episode) for score, episode in scored if episode.outcome.invalid and not seen.ranked]
    for score, episode in unreadable:
        valid = [(s, other) for s, other in scored if other.index == episode.index and not other.outcome.invalid]
        least, other = min(valid, key=lambda pair: pair[0], default=(math.inf, episode))
        if score > least:
            yield Finding(
                "rewards",
                "warning",
                f"It pays to be unreadable: at train instance {episode.index} {episode.reply.label} is invalid and"
                f" earns {score:.3g}, {other.reply.label} is not and earns {least:.3g}. Give Invalid a reward= below"
                " all.",
            )
            break
    changed = [
        (once, again)
        for once, again in seen.repeated
        if again.outcome.rewards and again.outcome.rewards != once.outcome.rewards
    ]
    if changed:
        once, again = changed[0]
        yield Finding(
            "rewards",
            "warning",
            f"The same replies earn another reward the second time ({len(changed)} of {len(seen.repeated)} episodes):"
            f" {once.reply.label} at train instance {once.index} earns {_earned(once)}, then {_earned(again)}. Draw"
            " what is random from ep.rng or ep.noise.",
        )


def _earned(episode: Played) -> str:
    if len(episode.outcome.rewards) == 1:
        return f"{episode.score:.3g}"
    return ", ".join(f"{reward:.3g} ({agent})" for agent, reward in episode.outcome.rewards.items())


def check_latency(seen: Observed) -> Iterator[Finding]:
    """The model need not wait for the environment."""
    first = seen.draws[0].seconds
    late = seen.start + first > SLOW_START
    slow = " Every edit and every restart waits for that; load less, or load it when it is first needed."
    yield Finding(
        "latency",
        "warning" if late else "note",
        f"Its process takes {_spoken(seen.start)} to start and {_spoken(first)} to its first prompt."
        + (slow if late else ""),
    )
    turns = [seconds for episode in seen.constant or seen.odd for seconds in episode.turns]
    if turns:
        middle, worst = statistics.median(turns), max(turns)
        late = middle > SLOW_TURN or worst > SLOWEST_TURN
        slow = " Every episode waits for that at every turn: do less in it, or prepare it in setup."
        yield Finding(
            "latency",
            "warning" if late else "note",
            f"A turn takes {_spoken(middle)} of its own time (median of {len(turns)}), {_spoken(worst)} at worst."
            + (slow if late else ""),
        )


CHECKS: tuple[Callable[[Observed], Iterator[Finding]], ...] = (
    check_instances,
    check_determinism,
    check_leaks,
    check_junk,
    check_baseline,
    check_rewards,
    check_latency,
)


def _of(number: int, every: int) -> str:
    return f"{number} of {every} instances"


def _spoken(seconds: float) -> str:
    return f"{seconds:.1f} s" if seconds >= 1 else f"{1000 * seconds:.{0 if seconds >= 0.01 or not seconds else 1}f} ms"


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
    return list(check_program(await play(subject, index, OK, Pace(subject.timeout))))


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
