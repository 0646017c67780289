"""Fills groups: plays the members of one instance with the current version, and closes the group when all are done.

Group numbers flow in, closed groups flow to the pool and the store. A group that cannot close (too few rewards, a
held-out prompt, an unusable draw) is filled again from another instance: its number never changes. With dynamic
sampling, so is one of equal rewards, a few times.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence, Set

from ..environments.lease import Lease
from ..environments.protocol import EpisodeSpec
from ..environments.ranking import ranked
from ..faults import Point, reach
from ..rollout.conversation import Voice
from ..rollout.episodes import HeldOutPrompt, Played, PromptHash
from ..rollout.seeds import noise_seed
from ..spec import TaskSpec
from ..store.versions import Version
from ..training.advantages import ClosedGroup, TooFewRewards, close_group
from ..types import Group, Transcripts
from .endings import Fruitless, Paused, first_failure
from .environment import TaskEnvironment
from .held_out import HeldOutPrompts
from .rules import closing_rules, replacements
from .services import Services
from .shelf import Shelf

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


class Producer:
    """Plays the training groups of one policy."""

    def __init__(
        self,
        services: Services,
        spec: TaskSpec,
        policy: int,
        environment: TaskEnvironment,
        shelf: Shelf,
        held_out: HeldOutPrompts,
    ) -> None:
        self._services = services
        self._spec = spec
        self._policy = policy
        self._environment = environment
        self._shelf = shelf
        self._held_out = held_out
        self._rules = closing_rules(spec)
        self._replacements = replacements(spec)

    async def fill(self, number: int) -> ClosedGroup:
        """Play group ``number`` until it closes, store it and return it.

        Raises ``Paused`` when the environment keeps failing, ``Blocked`` when none serves, ``WorkerDied``.
        """
        failures = replaced = 0
        for attempt in range(MAX_ATTEMPTS):
            version = self._shelf.now()
            with self._shelf.hold(version):
                async with self._environment.bound() as lease:
                    played = await self._play(number, attempt, version, lease)
                    environment_version, cut = lease.environment_version, lease.cut
            if played is None or (cut and any(one.episode.status == "cancelled" for one in played)):
                continue
            index = instance(number, attempt)
            episodes = tuple(one.episode for one in played)
            group = Group(number, index, version.number, environment_version, episodes, replaced)
            closed = close_group(group, self._rules)
            if isinstance(closed, ClosedGroup):
                if closed.rewards.constant and replaced < self._replacements:
                    replaced += 1
                    continue
                transcripts: Transcripts = {key: text for one in played for key, text in one.transcripts.items()}
                reach(Point.GROUP_CLOSED)
                self._services.store.experience.add_group(self._policy, "train", closed.group, transcripts)
                reach(Point.GROUP_STORED)
                return closed
            failures += self._failed(closed, played)
            if failures >= MAX_FAILURES:
                await self._environment.check()  # it may rest by now: then the task waits, and goes on by itself
                raise Paused(f"The environment failed {failures} groups in a row: {first_failure(played)}.")
        raise Fruitless(
            f"No usable training prompt was found in {MAX_ATTEMPTS} draws.",
            "The environment's space of prompts may be too small for the held-out set.",
        )

    async def _play(self, number: int, attempt: int, version: Version, lease: Lease) -> list[Played] | None:
        """All members of one attempt, or None where the prompt is held out."""
        held_out = await self._held_out.of(lease)
        members = [
            asyncio.ensure_future(self._member(number, attempt, member, version, lease, held_out))
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
        """The members with the rewards of their group's ranking, before anything is made of them."""
        outcomes = await ranked(self._services.environments, lease, [one.outcome for one in played], counts=True)
        return [one.judged(outcome) for one, outcome in zip(played, outcomes, strict=True)]

    async def _member(
        self, number: int, attempt: int, member: int, version: Version, lease: Lease, held_out: Set[PromptHash]
    ) -> Played:
        seed = self._spec.train.seed
        spec = EpisodeSpec("train", instance(number, attempt), seed, member, lease.config)
        voice = Voice(
            version=version.name,
            number=version.number,
            temperature=self._spec.sampling.temperature,
            max_tokens=self._spec.sampling.max_tokens,
            max_episode_tokens=self._spec.sampling.max_episode_tokens,
            seed=noise_seed(seed, "train", number, attempt, member),
            thinking=self._spec.sampling.thinking,
        )
        name = f"{version.name}/g{number}.{attempt}.{member}"
        play, station = self._environment.player(lease), self._shelf.station(version, number)
        return await self._services.rollout.play(play, spec, voice, name, station, held_out.__contains__)

    def _failed(self, closed: TooFewRewards, played: Sequence[Played]) -> int:
        """1 if the environment is to blame, 0 if the draw was merely unusable."""
        return int(any(one.episode.status in ("error", "timeout") for one in played))
