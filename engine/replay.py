"""Runs recorded groups on another environment version; compares rewards."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from marlaas.plugins.messages import Ask, Reply, ToolCall
from marlaas.plugins.parameters import complete

from .environments.protocol import EpisodeOutcome, EpisodeSpec
from .environments.served_version import Lease
from .environments.service import EnvironmentService, ranked
from .errors import ConfigError, MarlaasError
from .rollout.spoken import before_stop
from .spec.automatic import as_number, for_talk
from .spec.task import TaskSpec
from .store.queries.episodes import RecordedAgent, RecordedEpisode, RecordedGroup
from .trajectories import Split

# Recorded replies replace the model.
#
# The first differing ask is found. Tools and limits are not stored: an ask that differs only in them counts as the
# same.

Calls = Callable[[str, bool], tuple[str, tuple[ToolCall, ...]]]
"""(reply, True if it had tools) to (text without the calls, calls)."""

SAID = ("thinking", "assistant")
DEAF_ASKS = 100
"""Asks without tokens left, until the replay ends."""


class BeyondRecord(MarlaasError):
    """No reply was recorded: the replay ends."""


class Playback:
    """Answers one episode's asks."""

    def __init__(self, episode: RecordedEpisode, max_tokens: int, calls: Calls) -> None:
        self._tracks = {name: _Track(name, agent, max_tokens, calls) for name, agent in episode.agents.items()}

    async def __call__(self, ask: Ask) -> Reply:
        """Raises ``BeyondRecord`` if the ask differs, or has no recorded reply or several."""
        if ask.branch or (ask.fork is not None and ask.fork.branch):
            raise BeyondRecord("an agent's own conversation branches there, which cannot be replayed")
        track = self._tracks.get(ask.agent)
        if track is None:
            raise BeyondRecord(f"it asks the agent {ask.agent!r}, whom nobody asked then")
        if ask.fork is not None:
            origin, track.before = self._tracks.get(ask.fork.agent), ask.fork.turns
            track.tools = origin is not None and origin.tools
        return track.reply(ask)

    @property
    def unheard(self) -> str:
        return next((left for track in self._tracks.values() if (left := track.unheard)), "")


@dataclass
class _Track:
    name: str
    recorded: RecordedAgent
    max_tokens: int
    calls: Calls
    tools: bool = False
    at: int = 0
    replied: int = 0
    before: int = 0
    """For a fork, earlier replies in the original conversation."""
    deaf: int = 0

    @property
    def unheard(self) -> str:
        recorded = len(self.recorded.replies)
        return f"it ends after {self.replied} of {recorded} replies" if self.replied < recorded else ""

    def _hear(self, ask: Ask) -> None:
        """Skip the ask's messages, the same as then."""
        self.tools = self.tools or bool(ask.tools)
        asked = [(message.role, message.content) for message in ask.messages]
        then = [(turn.role, turn.text) for turn in self.recorded.turns[self.at :]]
        end = len(asked)
        if asked == then[:end] and (end == len(then) or then[end][0] in SAID):
            self.at += end
            return
        told = then[: next((place for place, (role, _) in enumerate(then) if role in SAID), len(then))]
        for now, before in zip(asked, told, strict=False):
            if now[0] != before[0]:
                raise BeyondRecord(f"it speaks as {now[0]} where it spoke as {before[0]}")
            if now != before:
                raise BeyondRecord(f"it says {now[1]!r:.80} where it said {before[1]!r:.80}")
        amount = "more" if len(asked) > len(told) else "less"
        raise BeyondRecord(f"it says {amount} to the agent {self.name!r} than it did then")

    def reply(self, ask: Ask) -> Reply:
        if self.replied >= len(self.recorded.replies):
            return self._nothing(ask)
        self._hear(ask)
        number, self.replied = self.replied, self.replied + 1
        thinking, shown = self._said("thinking"), self._said("assistant")
        text, found = self.calls(shown, self.tools)
        finish = "tool" if found else self._finish(number, ask)
        return Reply(before_stop(text, ask.stop), finish, self.before + number, found, thinking)

    def _said(self, role: str) -> str:
        turns = self.recorded.turns
        if self.at >= len(turns) or turns[self.at].role != role:
            return ""
        self.at += 1
        return turns[self.at - 1].text

    def _finish(self, number: int, ask: Ask) -> str:
        """ "length" if a limit ended the reply, or it ended at the limit."""
        limit = min(ask.max_tokens or self.max_tokens, self.max_tokens)
        last = number == len(self.recorded.replies) - 1
        cut = self.recorded.cut if last and not ask.max_tokens else self.recorded.replies[number] >= limit
        return "length" if cut else "stop"

    def _nothing(self, ask: Ask) -> Reply:
        """Empty if the recorded agent had no tokens left either."""
        turns = self.recorded.turns
        full = self.recorded.cut and bool(turns) and turns[-1].role not in SAID
        if not full or self.deaf >= DEAF_ASKS:
            raise BeyondRecord(f"it asks the agent {self.name!r} more often than it did then")
        if not self.deaf:
            self._hear(ask)
        self.deaf += 1
        return Reply("", "length", self.before + self.replied)


Kind = Literal["unchanged", "changed", "not comparable", "failing"]


@dataclass(frozen=True)
class Replayed:
    """A recorded episode with its replay."""

    recorded: RecordedEpisode
    outcome: EpisodeOutcome | None
    """None if the replay had to end earlier."""
    difference: str = ""
    """Why its rewards cannot be compared."""


@dataclass(frozen=True)
class Verdict:
    """One agent's compared rewards in one episode."""

    kind: Kind
    step: int | None
    group: int
    member: int
    agent: str
    old: float | None
    new: float | None
    """None if the replay gives no reward."""
    reason: str


@dataclass(frozen=True)
class Summary:
    """Counts of verdicts, mean rewards before and after."""

    rewards: int
    unchanged: int
    changed: int
    not_comparable: int
    failing: int
    mean_before: float | None
    """Over rewards that exist both before and after."""
    mean_after: float | None


def verdicts(group: RecordedGroup, replayed: Sequence[Replayed]) -> list[Verdict]:
    """One per episode and agent that spoke."""
    found = []
    for one in replayed:
        rewards: Mapping[str, float] = one.outcome.rewards if one.outcome is not None else {}
        for agent in one.recorded.agents or rewards or ("",):
            recorded = one.recorded.agents.get(agent)
            old, step = (recorded.reward, recorded.step) if recorded is not None else (None, group.step)
            new = rewards.get(agent)
            kind, reason = _judged(one, old, new)
            found.append(Verdict(kind, step, group.number, one.recorded.member, agent, old, new, reason))
    return found


def summarise(found: Sequence[Verdict]) -> Summary:
    """Counts and mean rewards."""
    kinds = [verdict.kind for verdict in found]
    comparable = [
        (verdict.old, verdict.new)
        for verdict in found
        if verdict.kind in ("unchanged", "changed") and verdict.old is not None and verdict.new is not None
    ]
    return Summary(
        rewards=len(found),
        unchanged=kinds.count("unchanged"),
        changed=kinds.count("changed"),
        not_comparable=kinds.count("not comparable"),
        failing=kinds.count("failing"),
        mean_before=_mean([old for old, _ in comparable]),
        mean_after=_mean([new for _, new in comparable]),
    )


def _judged(one: Replayed, old: float | None, new: float | None) -> tuple[Kind, str]:
    if one.difference or one.outcome is None:
        return "not comparable", one.difference
    if one.outcome.status in ("error", "timeout"):
        return "failing", _failure(one.outcome)
    if old == new:
        return "unchanged", ""
    return "changed", _why(one.recorded, one.outcome, old)


def _why(recorded: RecordedEpisode, outcome: EpisodeOutcome, old: float | None) -> str:
    if outcome.status != "ok":
        return f"the episode ends as {outcome.status}"
    if old is None:
        return f"it had no reward: {recorded.failure or recorded.status}"
    if outcome.invalid:
        return f"invalid: {outcome.invalid}"
    names = dict.fromkeys((*recorded.parts, *outcome.parts))
    before_after = ((name, recorded.parts.get(name), outcome.parts.get(name)) for name in names)
    return ", ".join(f"{name} {_number(old)} → {_number(new)}" for name, old, new in before_after if old != new)


def _failure(outcome: EpisodeOutcome) -> str:
    if outcome.failure is None:
        return outcome.status
    place = f" ({outcome.failure.file}:{outcome.failure.line})" if outcome.failure.file else ""
    return f"{outcome.failure.message}{place}"


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.4g}"


def _mean(values: Sequence[float]) -> float | None:
    return math.fsum(values) / len(values) if values else None


# Nothing is sampled, trained or written; an engine may run at the same time.

AT_ONCE = 64
"""Training has more episodes, but most wait for replies; here all would run the environment's code."""
_UNRANKED = "another episode of its group cannot be compared, and they are ranked together"


def at_once(spec: TaskSpec) -> int:
    """Concurrent episodes: at most its training's, and ``AT_ONCE``."""
    train = spec.train
    batches = [policy.groups_per_step or train.groups_per_step for policy in spec.policies.values()]
    groups = max(batches, default=train.groups_per_step) * (train.max_staleness + 1)
    return min(AT_ONCE, groups * train.group_size)


async def replay(
    service: EnvironmentService,
    lease: Lease,
    spec: TaskSpec,
    split: Split,
    calls: Calls,
    groups: Sequence[RecordedGroup],
) -> list[Verdict]:
    """Replay a task's groups on the environment version of ``lease``; verdicts in order.

    Raises ``ConfigError`` if the version refuses the parameters.
    """
    declared = lease.declared
    try:
        config = complete(declared.parameters, spec.environment_config, declared.name)
    except ValueError as error:
        raise ConfigError(f"This version refuses what the task is played with: {error}") from None
    most, max_tokens = at_once(spec), as_number(for_talk(spec.sampling).max_tokens)
    seed = spec.train.seed if split == "train" else 0
    episodes = asyncio.Semaphore(most)
    opened = asyncio.Semaphore(most)  # of many groups few are in memory as tasks

    async def episode(group: RecordedGroup, recorded: RecordedEpisode) -> Replayed:
        playback = Playback(recorded, max_tokens, calls)
        try:
            async with episodes:
                shown = EpisodeSpec(split, group.instance, seed, recorded.member, config)
                outcome = await service.play(lease, shown, playback)
        except BeyondRecord as error:
            return Replayed(recorded, None, error.message)
        over = outcome.status in ("ok", "skip")  # else it ended before all replies could be asked for
        return Replayed(recorded, outcome, playback.unheard if over else "")

    async def whole(group: RecordedGroup) -> list[Verdict]:
        async with opened:
            played = await asyncio.gather(*(episode(group, recorded) for recorded in group.episodes))
            if declared.ranked and split == "train":
                return verdicts(group, await _ranked(service, lease, played))
            return verdicts(group, played)

    return [verdict for found in await asyncio.gather(*map(whole, groups)) for verdict in found]


async def _ranked(service: EnvironmentService, lease: Lease, played: Sequence[Replayed]) -> Sequence[Replayed]:
    if any(one.difference and one.recorded.status == "ok" for one in played):
        return [replace(one, difference=one.difference or _UNRANKED) for one in played]
    members = [one for one in played if one.outcome is not None and not one.difference]
    outcomes = await ranked(service, lease, [one.outcome for one in members if one.outcome is not None])
    judged = {one.recorded.member: outcome for one, outcome in zip(members, outcomes, strict=True)}
    return [replace(one, outcome=judged.get(one.recorded.member, one.outcome)) for one in played]
