"""Fills groups: plays the members of one instance with the current versions, and closes what each policy gets of it.

A policy's group closes once its agents are done in all members, whatever the others still do (``early_groups``).
Members that have ended outlive the engine (``open_plays``). A member that fails is played again by itself
(``members``). A play from which no group can be closed even so (too few rewards, a held-out prompt, an unusable draw)
is made again from another instance, under the same number. With dynamic sampling, so is one of equal rewards, a few
times.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import NamedTuple

from ...environments import EpisodeSpec, Lease, ranked
from ...errors import Fruitless, StoreError, WorkerDied
from ...faults import Point, reach
from ...fleet import Services
from ...racing import until_first
from ...rollout import FinishedAgent, HeldOutPrompt, Played, PromptHash, Replicas, noise_seed
from ...spec import TaskSpec
from ...store import Draw, OpenPlay, PolicyGroup
from ...training import ClosedGroup, TooFewRewards, close_group
from ...trajectories import Transcripts
from ..drawing import TaskPrompts
from ..environment import Component, Mixture
from ..selfplay import Match, Participants
from ..stage_settings import closing_rules, replacements
from .attempt import Attempt, Place, Put, Tally, Wanting
from .early_groups import EarlyGroups
from .endings import all_lost, never_asks, too_few
from .lost_draws import LostDraws
from .members import Member, MemberPlay, play_members
from .open_plays import Keeper, Resumed, resumed
from .policy_groups import besides, close_parts, texts_of
from .redundancy import closing, dropped
from .survivors import BiasWatch

MAX_SHORT = 20
"""Draws of which none closes, of whichever groups, that may lose too many members, though not all, before the task
pauses. Where one reply in five fails every other draw of a group of eight loses two members or more, and twenty in a
row come once in a million."""
MAX_SILENT = 256
"""Episodes that may end well without asking the model before the task pauses, where none of this version has asked. One
that asks on every other instance ends 32 groups of eight so by chance once in 4e9 runs."""
MAX_ATTEMPTS = 100
"""Attempts at one group, held-out prompts and unusable draws included."""


class Filling(NamedTuple):
    """What all attempts at a group have in common."""

    number: int
    component: Component
    own: int
    """The group's number among those of its component."""
    more: Callable[[int], None]
    """See ``Producer.fill``."""
    put: Put


class Ended(NamedTuple):
    """An attempt that has been played, before it is known what becomes of it."""

    run: Attempt
    lease: Lease
    """That it was played on; released by now."""
    members: Sequence[Member]
    """Those of which a group can be made."""
    others: Sequence[Member]
    """Those that it does not need."""
    cut: bool
    """Whether the version's grace was over by its end, so that members may have been cancelled."""


class Producer:
    """Plays the training groups of one task."""

    def __init__(
        self,
        services: Services,
        task: int,
        spec: TaskSpec,
        mixture: Mixture,
        participants: Participants,
        prompts: TaskPrompts,
        bias: BiasWatch,
        early: bool = True,
    ) -> None:
        """``early``: whether groups may close before their play is over. Those of a deterministic task never do: were
        the engine to die then, the rest would be played with other versions, once the ones that spoke are gone.
        """
        self._services = services
        self._task = task
        self._spec = spec
        self._mixture = mixture
        self._participants = participants
        self._prompts = prompts
        self._bias = bias
        self._early = early and not spec.train.deterministic
        self._replacements = replacements(spec)
        self._trained = len(participants.agent_map.trained)
        self._asked: set[tuple[str, str]] = set()
        """Components, with the version of their environment, on which somebody was asked."""
        self._silent: Counter[tuple[str, str]] = Counter()
        """Episodes by the same that ended well without asking, before any asked."""
        self._lost_draws = LostDraws()
        self._short: Counter[tuple[str, str]] = Counter()
        """Draws that had too few rewards since a group closed, by component and version of its environment."""
        self._leading = next(iter(participants.agent_map.trained))
        """Whose groups a curriculum goes by."""

    async def room(self, number: int, policies: Iterable[str]) -> None:
        """Wait until there is room for group ``number``, which these policies are trained on.

        There is where no episode waits for a place in a process of the environment that it plays on, and the policies'
        samplers have use for its turns.
        """
        await self._mixture.of(number)[0].environment.room()
        with suppress(WorkerDied):  # nothing serves a policy: whoever begins the group says so
            for policy in policies:
                await self._services.rollout.room(self._participants.endpoints(policy), self._spec.train.begun_members)

    def begin(self) -> None:
        """A group begins; to be called before ``room`` is asked for the next."""
        self._services.rollout.begin(self._spec.train.begun_members)

    async def fill(
        self,
        number: int,
        wanting: Sequence[Wanting],
        more: Callable[[int], None] = lambda _: None,
        put: Put = lambda policy, closed: None,
    ) -> Mapping[str, ClosedGroup]:
        """Play group ``number`` until it closes, store what each of the policies gets of it, and return that by name.

        ``more`` is told how many members there are more to play than before: one less as each has been played and may
        only wait for its score, all anew where the number is filled again. ``put`` is given the groups that close
        before their play is over. Such a group stays, whatever becomes of the play; further attempts are made for the
        others alone. Groups that grow too old are missing in what is returned. Raises ``Paused`` when the environment
        keeps failing, ``Blocked`` when no version serves, ``WorkerDied``.
        """
        train = self._spec.train
        in_a_row = 0  # draws that were lost since any had rewards
        done: dict[str, ClosedGroup] = {}
        component, own = self._mixture.of(number)
        filling, drawing = Filling(number, component, own, more, put), self._prompts.drawing(component)
        before = self._resumed(number, wanting)
        tally = Tally() if before is None else Tally(before.play.replaced, before.play.lost, before.play.replayed)
        first = 0 if before is None else before.play.attempt
        for attempt in range(first, MAX_ATTEMPTS):
            if attempt > first:
                more(train.begun_members)
            left = [policy for policy in wanting if policy.name not in done]
            run, lease, members, others, cut = await self._attempted(filling, attempt, left, tally, before)
            version = run.place.environment_version
            self._see_asks(component, version, members)
            before, done, where = None, done | run.closed, (component.name, version)
            if not run.left:
                self._lost_draws.kept(where, in_a_row)
                self._short[where] = 0
                self._bias.see(version, run.early.members, component.name)
                drawing.learn(own)
                return done
            if run.stale:
                run.keeper.give_up()
                return done
            if not members or (cut and any(one.played.episode.status == "cancelled" for one in members)):
                run.keeper.give_up()
                continue
            begun = [*members, *others]
            self._bias.see(version, [one for one in begun if one.plays], component.name)
            tally = tally.after(begun)
            if train.redundant:
                component.environment.left([one.played.outcome for one in others if one.dropped], lease)
            closed = self._close(run, members, others, tally)
            if isinstance(closed, TooFewRewards):
                in_a_row = await self._see_lost(run, members, lease, in_a_row)
                run.keeper.give_up()
                continue
            done |= closed
            self._lost_draws.kept(where, in_a_row)
            in_a_row = self._short[where] = 0
            if self._leading in closed:
                drawing.note(own, attempt, run.place.drawn, closed[self._leading].rewards)
            if tally.replaced < self._replacements and all(one.rewards.constant for one in done.values()):
                tally, done = replace(tally, replaced=tally.replaced + 1), {}
                run.keeper.give_up()
                continue
            await self._store(run, [one.played for one in members], closed, drawing.tried(own))
            drawing.learn(own)
            return done
        raise Fruitless(
            f"No usable training prompt was found in {MAX_ATTEMPTS} draws.",
            "The environment's space of prompts may be too small for the held-out set.",
        )

    async def _attempted(
        self, filling: Filling, attempt: int, wanting: Sequence[Wanting], tally: Tally, before: Resumed | None
    ) -> Ended:
        """Play one attempt at a group, on one version of its environment; ``before``: how far an earlier run got."""
        number, component, own, more, put = filling
        match = self._participants.match(number, attempt) if before is None else before.match
        async with self._participants.playing(match), component.environment.bound() as lease:
            version = lease.environment_version
            before = self._fitting(before, version)
            # also where it is known already, or a curriculum would not know of it
            drawn = await self._prompts.drawing(component).instance(lease, own, attempt)
            place = Place(number, attempt, before.play.index if before else drawn, component, version)
            run = self._attempt(place, match, wanting, tally, before, put)
            played = await self._play(run, lease, before.members if before else {}, more)
            members, others = closing(played, self._spec.train.group_size)
            if lease.declared.ranked:
                members = await self._ranked(members, lease)
            return Ended(run, lease, members, others, lease.cut)

    def _see_asks(self, component: Component, version: str, members: Sequence[Member]) -> None:
        """Raise ``Fruitless`` where a version of an environment has ended ``MAX_SILENT`` episodes without asking."""
        key = component.name, version
        if any(one.played.prompt is not None for one in members):
            self._asked.add(key)
        if key in self._asked:
            return
        self._silent[key] += sum(one.rewarded for one in members)
        if self._silent[key] >= MAX_SILENT:
            raise never_asks(component.spec.environment, f"{self._silent[key]} episodes")

    async def _see_lost(self, run: Attempt, members: Sequence[Member], lease: Lease, in_a_row: int) -> int:
        """Count an attempt that has too few rewards; returns how many in a row were lost whole by now.

        Raises ``Fruitless`` where that is no chance any more, and ``Blocked`` where the environment is to rest.
        """
        place, played = run.place, [one.played for one in members]
        where, component = (place.component.name, place.environment_version), place.component.name
        if all(one.lost for one in members):
            in_a_row += 1
        elif any(one.lost for one in members):
            self._lost_draws.kept(where, in_a_row)
            in_a_row = 0
            self._short[where] += 1
        hopeless = self._lost_draws.beyond_chance(where, in_a_row)
        if hopeless or self._short[where] >= MAX_SHORT:
            await place.component.environment.check()  # where it rests, the task waits instead of pausing
            if hopeless:
                raise all_lost(in_a_row, played, lease.environment, place.drawn, component)
            fewest = max(closing_rules(one.spec).min_members for one in run.left)
            raise too_few(self._short[where], fewest, played, component)
        return in_a_row

    def _resumed(self, number: int, wanting: Sequence[Wanting]) -> Resumed | None:
        """The play of this number that an earlier run has begun, if it can go on."""
        store, names = self._services.store, [policy.name for policy in wanting]
        found = resumed(store, self._participants, self._task, number, names)
        if found is None:
            return None
        # with a curriculum, what its earlier attempts drew is not known any more
        unknown = found.play.attempt and self._spec.train.sampling == "difficulty"
        if unknown or any(found.match.versions[policy.name].number < policy.oldest for policy in wanting):
            store.open_plays.drop(found.play)
            return None
        return found

    def _fitting(self, before: Resumed | None, environment_version: str) -> Resumed | None:
        """The same where it was played on that version of the environment."""
        if before is not None and before.play.environment_version != environment_version:
            self._services.store.open_plays.drop(before.play)
            return None
        return before

    def _attempt(
        self,
        place: Place,
        match: Match,
        wanting: Sequence[Wanting],
        tally: Tally,
        before: Resumed | None,
        put: Put,
    ) -> Attempt:
        """An attempt that is about to be played, or to go on."""
        play = OpenPlay(
            self._task,
            place.number,
            before.play.policies if before else tuple(policy.name for policy in wanting),
            place.attempt,
            place.drawn,
            place.component.name,
            place.environment_version,
            {name: (version.number, version.checksum) for name, version in match.versions.items()},
            tally.replaced,
            tally.lost,
            tally.replayed,
        )
        early = EarlyGroups(match, self._spec.train.group_size)
        keeper = Keeper(self._services.store, play, before is not None)
        return Attempt(place, match, wanting, tally, early, keeper, play, put)

    def _close(
        self, run: Attempt, members: Sequence[Member], others: Sequence[Member], tally: Tally
    ) -> dict[str, ClosedGroup] | TooFewRewards:
        """Close the groups that are left once a play is over, by policy; ``others`` are members that it needs not."""
        left, episodes = run.left, [one.played.episode for one in members]
        groups = [run.part(policy, episodes, tally) for policy in left]
        if self._spec.train.redundant:  # one policy is trained: more are refused
            left_out = dropped(members, others, run.match.agents_of(left[0].name))
            groups = [replace(groups[0], dropped=left_out)]
        closed = close_parts(episodes, groups, [closing_rules(policy.spec) for policy in left])
        if isinstance(closed, TooFewRewards):
            return closed
        return {policy.name: one for policy, one in zip(left, closed, strict=True)}

    def _close_early(self, run: Attempt) -> None:
        """Store and hand over the groups of policies whose agents are done; where that fails, they wait.

        With redundant members none closes early: which of them count is known when enough have ended.
        """
        for policy in run.left if self._early and not self._spec.train.redundant else ():
            done = run.early.episodes(policy.name)
            if done is None:
                continue
            episodes, texts = done
            tally = run.tally.after(run.early.ended)
            closed = close_group(run.part(policy, episodes, tally), closing_rules(policy.spec))
            if isinstance(closed, TooFewRewards) or not closed.rewards.count:
                continue
            if closed.rewards.constant and run.tally.replaced < self._replacements:
                continue  # the whole play may be replaced
            place, draws = run.place, tuple[Draw, ...]()
            _, own = self._mixture.of(place.number)
            drawing = self._prompts.drawing(place.component)
            leads = policy.name == self._leading
            if leads:
                drawing.note(own, place.attempt, place.drawn, closed.rewards)
                draws = drawing.tried(own)
            part = PolicyGroup(policy.policy, closed.group, texts_of(texts, run.match.agents_of(policy.name)))
            last = len(run.left) == 1
            opens, closes = (None, run.open) if last else (run.open, None)
            reach(Point.GROUP_CLOSED)
            try:
                run.play = self._services.store.experience.add_play(
                    "train", [part], draws=draws, play=run.play, opens=opens, closes=closes
                )
            except StoreError:
                if leads:
                    drawing.take_back(own)
                return
            if leads:
                drawing.learn(own)
            if last:
                run.keeper.close()
            else:
                run.keeper.stored = True
            run.closed[policy.name] = closed
            reach(Point.GROUP_STORED)
            run.put(policy.name, closed)
        if not run.left:
            run.over.set()

    async def _store(
        self, run: Attempt, played: Sequence[Played], closed: Mapping[str, ClosedGroup], draws: Sequence[Draw]
    ) -> None:
        """Store the groups that are left of a play in one transaction: none is there without the others."""
        store, left = self._services.store, [policy for policy in run.wanting if policy.name in closed]
        texts: Transcripts = {key: text for one in played for key, text in one.transcripts.items()}
        parts = [
            PolicyGroup(policy.policy, closed[policy.name].group, texts_of(texts, run.match.agents_of(policy.name)))
            for policy in left
        ]
        learning = {policy.name for policy in run.wanting}
        beside = besides([one.episode for one in played], texts, run.match, learning)
        closes = run.open if run.keeper.stored else None
        reach(Point.GROUP_CLOSED)
        await store.patiently(
            lambda: store.experience.add_play("train", parts, beside, draws=draws, play=run.play, closes=closes)
        )
        reach(Point.GROUP_STORED)

    async def _play(
        self, run: Attempt, lease: Lease, known: Mapping[int, Member], more: Callable[[int], None]
    ) -> list[Member]:
        """The members of one attempt at an instance, in the order in which they ended; the ``known`` ones had ended.

        None at all where the prompt is held out, and where all groups are closed or too old while some members go on,
        which are cancelled.
        """
        train, held_out = self._spec.train, await self._prompts.kept_out(run.place.component, lease)
        if any(one.played.prompt in held_out for one in known.values()):
            return []
        unplayed = set(range(train.begun_members))

        def over(member: int) -> None:
            if member in unplayed:
                unplayed.remove(member)
                more(-1)

        replicas = self._participants.replicas(run.match)
        plays = [
            self._member(run, member, lease, held_out, replicas, known.get(member), partial(over, member))
            for member in range(train.begun_members)
        ]
        members: list[Member] = []

        async def play() -> None:
            with suppress(HeldOutPrompt):
                members.extend(await play_members(plays, train.group_size, over))

        for policy in run.wanting:
            policy.attempts.add(run)
        try:
            with run.keeper:
                await until_first(play(), run.over.wait())
        finally:
            for policy in run.wanting:
                policy.attempts.remove(run)
        return members

    async def _ranked(self, members: Sequence[Member], lease: Lease) -> list[Member]:
        """The members with the rewards that the environment gave by comparing them, where it ranks groups."""
        outcomes = [one.played.outcome for one in members]
        verdicts = await ranked(self._services.environments, lease, outcomes, counts=True)
        return [replace(one, played=one.played.judged(v)) for one, v in zip(members, verdicts, strict=True)]

    def _member(
        self,
        run: Attempt,
        member: int,
        lease: Lease,
        held_out: Set[PromptHash],
        replicas: Mapping[str, Replicas],
        known: Member | None,
        over: Callable[[], None],
    ) -> MemberPlay:
        place, match, seed = run.place, run.match, self._spec.train.seed
        spec = EpisodeSpec("train", place.drawn, seed, member, lease.config)
        sampling = self._spec.sampling
        noise = noise_seed(seed, "train", place.number, place.attempt, member)
        roles = match.roles(replicas, sampling, sampling.temperature, noise)
        apart = "" if len(run.wanting) == self._trained else f"-{'+'.join(policy.name for policy in run.wanting)}"
        name = f"{next(iter(match.versions.values())).name}/g{place.number}{apart}.{place.attempt}.{member}"
        play, rollout = place.component.environment.player(lease), self._services.rollout

        def finished(done: FinishedAgent) -> None:
            run.early.note(done)
            self._close_early(run)

        async def once(plays: int, left: Callable[[Played], None]) -> Played:
            own = f"{name}.{plays}" if plays else name
            return await rollout.play(play, spec, roles, own, held_out.__contains__, left, over, finished)

        def ended(played: Member) -> Member:
            one = run.early.end(member, played)
            if known is None:
                run.keeper.note(one)
            self._close_early(run)
            return one

        return MemberPlay(once, lambda: lease.cut or lease.rest is not None, known, ended)
