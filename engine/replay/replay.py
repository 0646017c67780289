"""Plays recorded groups again on another environment version, with the recorded replies.

Nothing is sampled, trained or written; it may run beside an engine.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import repeat

from marlaas.plugins.parameters import complete

from ..environments import EnvironmentService, EpisodeSpec, Lease, ranked
from ..errors import ConfigError
from ..spec import TaskSpec, as_number, for_talk
from ..store import RecordedEpisode, RecordedGroup
from ..trajectories import Split
from .playback import BeyondRecord, Calls, Playback
from .verdicts import Replayed, Verdict, verdicts

AT_ONCE = 64
"""Most episodes that are played at the same time. In training more of them are alive, but most wait for their replies.
Here each reply is there at once: all would be in the environment's own code, with its files and its processes."""
_UNRANKED = "another episode of its group cannot be compared, and they are ranked together"


def at_once(spec: TaskSpec) -> int:
    """How many episodes of a task are played at the same time: no more than its training has alive, and ``AT_ONCE``."""
    train = spec.train
    batches = [policy.groups_per_step or train.groups_per_step for policy in spec.policies.values()]
    groups = max(batches, default=train.groups_per_step) * (train.max_staleness + 1)
    return min(AT_ONCE, groups * train.group_size)


@dataclass(frozen=True)
class Replay:
    """Replays a task's groups on the environment version of ``lease``."""

    service: EnvironmentService
    lease: Lease
    spec: TaskSpec
    split: Split
    calls: Calls

    async def run(self, groups: Sequence[RecordedGroup]) -> list[Verdict]:
        """Replay groups and return verdicts in their order.

        Raises ``ConfigError`` where the version refuses the task's parameters.
        """
        declared = self.lease.declared
        try:
            config = complete(declared.parameters, self.spec.environment_config, declared.name)
        except ValueError as error:
            raise ConfigError(f"This version refuses what the task is played with: {error}") from None
        episodes = asyncio.Semaphore(at_once(self.spec))
        opened = asyncio.Semaphore(at_once(self.spec))  # of many groups few are in memory as tasks

        async def one(group: RecordedGroup) -> list[Verdict]:
            async with opened:
                seed = self.spec.train.seed if self.split == "train" else 0
                specs = (EpisodeSpec(self.split, group.instance, seed, e.member, config) for e in group.episodes)
                playing = map(self._episode, group.episodes, specs, repeat(episodes))
                played = await asyncio.gather(*playing)
                return verdicts(group, await self._ranked(played))

        return [verdict for found in await asyncio.gather(*map(one, groups)) for verdict in found]

    async def _episode(self, recorded: RecordedEpisode, spec: EpisodeSpec, permits: asyncio.Semaphore) -> Replayed:
        playback = Playback(recorded, as_number(for_talk(self.spec.sampling).max_tokens), self.calls)
        try:
            async with permits:
                outcome = await self.service.play(self.lease, spec, playback)
        except BeyondRecord as error:
            return Replayed(recorded, None, playback.difference or error.message)
        over = outcome.status in ("ok", "skip")  # else it ended before all replies could be asked for
        return Replayed(recorded, outcome, playback.difference or (playback.unheard if over else ""))

    async def _ranked(self, played: Sequence[Replayed]) -> Sequence[Replayed]:
        """The episodes with the rewards of the version's ranking, if it has one; evaluations are not ranked."""
        if not self.lease.declared.ranked or self.split != "train":
            return played
        if any(one.difference and one.recorded.status == "ok" for one in played):
            return [replace(one, difference=one.difference or _UNRANKED) for one in played]
        members = [one for one in played if one.outcome is not None and not one.difference]
        outcomes = await ranked(self.service, self.lease, [one.outcome for one in members if one.outcome is not None])
        judged = {one.recorded.member: outcome for one, outcome in zip(members, outcomes, strict=True)}
        return [replace(one, outcome=judged.get(one.recorded.member, one.outcome)) for one in played]
