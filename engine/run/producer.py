"""Fills groups: plays the members of one instance with the current versions, and closes what each policy gets of it.

A member that fails is played again by itself (``members``). A play from which no group can be closed even so (too few
rewards, a held-out prompt, an unusable draw) is made again from another instance, under the same number. With dynamic
sampling, so is one of equal rewards, a few times.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import dataclass, replace
from typing import Protocol

from ..environments import EpisodeSpec, Lease, ranked
from ..errors import Fruitless
from ..faults import Point, reach
from ..fleet import Services
from ..rollout import HeldOutPrompt, Played, PromptHash, noise_seed
from ..spec import TaskSpec
from ..store import Draw, PolicyGroup
from ..training import ClosedGroup, TooFewRewards
from ..trajectories import Transcripts
from .bias_watch import BiasWatch
from .endings import all_lost, too_few
from .members import Member, MemberPlay, play_members
from .mixture import Component, Mixture
from .policy_groups import Play, besides, close_parts, part_of, texts_of
from .prompts import TaskPrompts
from .redundancy import closing, dropped
from .rules import closing_rules, replacements
from .selfplay.match import Match
from .selfplay.participants import Participants

MAX_FAILURES = 5
"""Attempts at one group in which every member may fail in the environment before the task pauses."""
MAX_SHORT = 20
"""Attempts at one group that may lose too many members, though not all, before the task pauses. Where one reply in five
fails every other group of eight loses two members or more, and one number in a million is tried so often."""
MAX_ATTEMPTS = 100
"""Attempts at one group, held-out prompts and unusable draws included."""


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


@dataclass(frozen=True)
class _Place:
    """One attempt at a group."""

    number: int
    attempt: int
    drawn: int
    """Index of the instance."""
    component: Component


class Producer:
    """Plays the training groups of one task."""

    def __init__(
        self,
        services: Services,
        spec: TaskSpec,
        mixture: Mixture,
        participants: Participants,
        prompts: TaskPrompts,
        bias: BiasWatch,
    ) -> None:
        self._services = services
        self._spec = spec
        self._mixture = mixture
        self._participants = participants
        self._prompts = prompts
        self._bias = bias
        self._replacements = replacements(spec)

    async def room(self, number: int) -> None:
        """Wait until no episode waits for a place in a process of the environment that group ``number`` plays on."""
        await self._mixture.of(number)[0].environment.room()

    async def fill(
        self, number: int, wanting: Sequence[Wanting], more: Callable[[int], None] = lambda _: None
    ) -> Mapping[str, ClosedGroup]:
        """Play group ``number`` until it closes, store what each of the policies gets of it, and return that by name.

        ``more`` is told how many members there are more to play than before: one less as each ends, all anew where the
        number is filled again. Raises ``Paused`` when the environment keeps failing, ``Blocked`` when no version
        serves, ``WorkerDied``.
        """
        train = self._spec.train
        failures = short = replaced = lost = replayed = 0
        rules = [closing_rules(policy.spec) for policy in wanting]
        component, own = self._mixture.of(number)
        environment, drawing = component.environment, self._prompts.drawing(component)
        for attempt in range(MAX_ATTEMPTS):
            if attempt:
                more(train.begun_members)
            match = self._participants.match(number, attempt)
            async with self._participants.playing(match), environment.bound() as lease:
                drawn = await drawing.instance(lease, own, attempt)
                place = _Place(number, attempt, drawn, component)
                members, others = closing(await self._play(place, match, lease, more), train.group_size)
                if lease.declared.ranked:
                    members = await self._ranked(members, lease)
                environment_version, cut = lease.environment_version, lease.cut
            if not members or (cut and any(one.played.episode.status == "cancelled" for one in members)):
                continue
            begun = [*members, *others]
            self._bias.see(environment_version, [one for one in begun if one.plays], component.name)
            played = [one.played for one in members]
            lost += sum(one.lost for one in begun)
            replayed += sum(len(one.before) for one in begun)
            episodes = tuple(one.episode for one in played)
            play = Play(number, drawn, environment_version, episodes, component.name, replaced, lost, replayed)
            groups = [part_of(play, match.versions[p.name].number, match.agents_of(p.name)) for p in wanting]
            if train.redundant:  # one policy is trained: more are refused
                groups = [replace(groups[0], dropped=dropped(members, others, match.agents_of(wanting[0].name)))]
                environment.left([one.played.outcome for one in others if one.dropped], lease)
            closed = close_parts(play, groups, rules)
            if isinstance(closed, TooFewRewards):
                failures += all(one.lost for one in members)
                short += any(one.lost for one in members)
                if failures >= MAX_FAILURES or short >= MAX_SHORT:
                    await environment.check()  # where it rests, the task waits instead of pausing
                    fewest = max(one.min_members for one in rules)
                    if failures >= MAX_FAILURES:
                        raise all_lost(failures, played, component.name)
                    raise too_few(short, fewest, played, component.name)
                continue
            drawing.note(own, attempt, drawn, closed[0].rewards)
            if replaced < self._replacements and all(one.rewards.constant for one in closed):
                replaced += 1
                continue
            await self._store(played, match, wanting, closed, drawing.tried(own))
            drawing.learn(own)
            return {policy.name: one for policy, one in zip(wanting, closed, strict=True)}
        raise Fruitless(
            f"No usable training prompt was found in {MAX_ATTEMPTS} draws.",
            "The environment's space of prompts may be too small for the held-out set.",
        )

    async def _store(
        self,
        played: Sequence[Played],
        match: Match,
        wanting: Sequence[Wanting],
        closed: Sequence[ClosedGroup],
        draws: Sequence[Draw],
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
        await store.patiently(lambda: store.experience.add_play("train", parts, beside, draws=draws))
        reach(Point.GROUP_STORED)

    async def _play(self, place: _Place, match: Match, lease: Lease, more: Callable[[int], None]) -> list[Member]:
        """The members of one attempt at an instance, in the order in which they ended; none where the prompt is held
        out."""
        train, held_out = self._spec.train, await self._prompts.kept_out(place.component, lease)
        plays = [self._member(place, member, match, lease, held_out) for member in range(train.begun_members)]
        try:
            return await play_members(plays, train.group_size, ended=lambda: more(-1))
        except HeldOutPrompt:
            return []

    async def _ranked(self, members: Sequence[Member], lease: Lease) -> list[Member]:
        """The members with the rewards that the environment gave by comparing them, where it ranks groups."""
        outcomes = [one.played.outcome for one in members]
        verdicts = await ranked(self._services.environments, lease, outcomes, counts=True)
        return [replace(one, played=one.played.judged(v)) for one, v in zip(members, verdicts, strict=True)]

    def _member(self, place: _Place, member: int, match: Match, lease: Lease, held_out: Set[PromptHash]) -> MemberPlay:
        seed = self._spec.train.seed
        spec = EpisodeSpec("train", place.drawn, seed, member, lease.config)
        sampling = self._spec.sampling
        noise = noise_seed(seed, "train", place.number, place.attempt, member)
        roles = match.roles(self._participants.endpoints(match, place.number), sampling, sampling.temperature, noise)
        name = f"{next(iter(match.versions.values())).name}/g{place.number}.{place.attempt}.{member}"
        play, rollout = place.component.environment.player(lease), self._services.rollout

        async def once(plays: int, left: Callable[[Played], None]) -> Played:
            own = f"{name}.{plays}" if plays else name
            return await rollout.play(play, spec, roles, own, held_out.__contains__, left)

        return MemberPlay(once, given_up=lambda: lease.cut or lease.rest is not None)
