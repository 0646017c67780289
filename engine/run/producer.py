"""Fills groups: plays the members of one instance with the current versions, and closes what each policy gets of it.

A play from which no group can be closed (too few rewards, a held-out prompt, an unusable draw) is made again from
another instance, under the same number. With dynamic sampling, so is one of equal rewards, a few times.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence, Set
from typing import Protocol

from ..environments import EpisodeSpec, Lease, ranked
from ..errors import Fruitless, Paused
from ..faults import Point, reach
from ..fleet import Services
from ..rollout import HeldOutPrompt, Played, PromptHash, noise_seed
from ..spec import TaskSpec
from ..store import PolicyGroup
from ..training import ClosedGroup, TooFewRewards
from ..trajectories import Transcripts
from .endings import first_failure
from .environment import TaskEnvironment
from .evaluation.held_out import HeldOutPrompts
from .policy_groups import Play, besides, close_parts, part_of, texts_of
from .rules import closing_rules, replacements
from .selfplay.match import Match
from .selfplay.participants import Participants

STRIDE = 1_000_003
"""Distance between the instances that successive attempts at one group number draw; a prime, so that tables of rows
are walked through evenly."""
MAX_FAILURES = 5
"""Attempts at one group that may fail in the environment before the task pauses."""
MAX_ATTEMPTS = 100
"""Attempts at one group, held-out prompts and unusable draws included."""


def instance(number: int, attempt: int) -> int:
    """The instance of a group: a pure function, so that a restart draws the same ones."""
    return number + attempt * STRIDE


class Wanting(Protocol):
    """What the producer needs to know of a trained policy."""

    @property
    def name(self) -> str:
        """Its name in the task."""

    @property
    def policy(self) -> int:
        """Its number in the store."""

    @property
    def spec(self) -> TaskSpec:
        """The task as this policy sees it."""


class Producer:
    """Plays the training groups of one task."""

    def __init__(
        self,
        services: Services,
        spec: TaskSpec,
        environment: TaskEnvironment,
        participants: Participants,
        held_out: HeldOutPrompts,
    ) -> None:
        self._services = services
        self._spec = spec
        self._environment = environment
        self._participants = participants
        self._held_out = held_out
        self._replacements = replacements(spec)

    async def room(self) -> None:
        """Wait until no episode waits for a place in a process of the environment."""
        await self._environment.room()

    async def fill(self, number: int, wanting: Sequence[Wanting]) -> Mapping[str, ClosedGroup]:
        """Play group ``number`` until it closes, store what each of the policies gets of it, and return that by name.

        Raises ``Paused`` when the environment keeps failing, ``Blocked`` when no version serves, ``WorkerDied``.
        """
        failures = replaced = 0
        rules = [closing_rules(policy.spec) for policy in wanting]
        for attempt in range(MAX_ATTEMPTS):
            match = self._participants.match(number, attempt)
            async with self._participants.playing(match), self._environment.bound() as lease:
                played = await self._play(number, attempt, match, lease)
                environment_version, cut = lease.environment_version, lease.cut
            if played is None or (cut and any(one.episode.status == "cancelled" for one in played)):
                continue
            episodes = tuple(one.episode for one in played)
            play = Play(number, instance(number, attempt), environment_version, episodes, replaced)
            groups = [part_of(play, match.versions[p.name].number, match.agents_of(p.name)) for p in wanting]
            closed = close_parts(groups, rules)
            if isinstance(closed, TooFewRewards):
                failures += self._failed(played)
                if failures >= MAX_FAILURES:
                    await self._environment.check()  # where it rests, the task waits instead of pausing
                    raise Paused(f"The environment failed {failures} groups in a row: {first_failure(played)}.")
            elif replaced < self._replacements and all(one.rewards.constant for one in closed):
                replaced += 1
            else:
                await self._store(played, match, wanting, closed)
                return {policy.name: one for policy, one in zip(wanting, closed, strict=True)}
        raise Fruitless(
            f"No usable training prompt was found in {MAX_ATTEMPTS} draws.",
            "The environment's space of prompts may be too small for the held-out set.",
        )

    async def _store(
        self, played: Sequence[Played], match: Match, wanting: Sequence[Wanting], closed: Sequence[ClosedGroup]
    ) -> None:
        """Store the groups of all policies of a play in one transaction: none is there without the others."""
        texts: Transcripts = {key: text for one in played for key, text in one.transcripts.items()}
        parts = [
            PolicyGroup(policy.policy, one.group, texts_of(texts, match.agents_of(policy.name)))
            for policy, one in zip(wanting, closed, strict=True)
        ]
        beside = besides([one.episode for one in played], texts, match, {policy.name for policy in wanting})
        reach(Point.GROUP_CLOSED)
        store = self._services.store
        await store.patiently(lambda: store.experience.add_play("train", parts, beside))
        reach(Point.GROUP_STORED)

    async def _play(self, number: int, attempt: int, match: Match, lease: Lease) -> list[Played] | None:
        """All members of one attempt, or None where the prompt is held out."""
        held_out = await self._held_out.of(lease)
        members = [
            asyncio.ensure_future(self._member(number, attempt, member, match, lease, held_out))
            for member in range(self._spec.train.group_size)
        ]
        try:
            played = await asyncio.gather(*members)
        except BaseException as error:
            for member in members:
                member.cancel()
            await asyncio.gather(*members, return_exceptions=True)
            if isinstance(error, HeldOutPrompt):
                return None
            raise
        return await self._ranked(played, lease) if lease.declared.ranked else played

    async def _ranked(self, played: Sequence[Played], lease: Lease) -> list[Played]:
        """The members with the rewards that the environment gave by comparing them, where it ranks groups."""
        outcomes = await ranked(self._services.environments, lease, [one.outcome for one in played], counts=True)
        return [one.judged(outcome) for one, outcome in zip(played, outcomes, strict=True)]

    async def _member(
        self, number: int, attempt: int, member: int, match: Match, lease: Lease, held_out: Set[PromptHash]
    ) -> Played:
        seed = self._spec.train.seed
        spec = EpisodeSpec("train", instance(number, attempt), seed, member, lease.config)
        sampling = self._spec.sampling
        noise = noise_seed(seed, "train", number, attempt, member)
        roles = match.roles(self._participants.endpoints(match, number), sampling, sampling.temperature, noise)
        name = f"{next(iter(match.versions.values())).name}/g{number}.{attempt}.{member}"
        play = self._environment.player(lease)
        return await self._services.rollout.play(play, spec, roles, name, held_out.__contains__)

    def _failed(self, played: Sequence[Played]) -> int:
        """1 if the environment is to blame, 0 if the draw was merely unusable."""
        return int(any(one.episode.status in ("error", "timeout") for one in played))
