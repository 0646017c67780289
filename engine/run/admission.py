"""Which group may begin, by the rule that bounds staleness, and complete groups that wait for their step."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from math import inf
from typing import Protocol

from ..clock import monotonic
from ..rollout import EPISODES
from ..spec import TrainSpec
from ..store import ExperienceTable
from ..training import ClosedGroup, close_group
from .background import Background
from .groups.attempt import Wanting
from .groups.producer import Producer
from .next_play import NextPlay, Waits, Wish, next_play
from .stage_settings import closing_rules

# Complete groups that wait for their step: producers put them in, the training loop takes them out.

CALL_TOKENS = 16_384
"""Most tokens of the groups that are taken at once; the first may have more. Larger passes gain nothing, and while one
runs no other task has its turn."""


class GroupPool:
    """Groups by number, ``batch`` of them for each step; ``fail`` lets the taker learn of a producer that gave up."""

    def __init__(self, batch: int, whole: bool = False) -> None:
        """``whole``: a step's groups are taken once all of them are there."""
        self._batch = batch
        self._whole = whole
        self._groups: dict[int, ClosedGroup] = {}
        self._arrived = asyncio.Event()
        self._failure: BaseException | None = None

    def put(self, group: ClosedGroup) -> None:
        """Add a complete group."""
        self._groups[group.group.number] = group
        self._arrived.set()

    def fail(self, error: BaseException) -> None:
        """Raise ``error`` in whoever takes next."""
        self._failure = self._failure or error
        self._arrived.set()

    def drop(self, oldest: int) -> list[int]:
        """Forget groups of versions before ``oldest``, and return their numbers."""
        numbers = [number for number, closed in self._groups.items() if closed.group.version < oldest]
        for number in numbers:
            del self._groups[number]
        return numbers

    async def take_ready(self, wanted: Sequence[int], missing: int, one_by_one: bool = False) -> list[ClosedGroup]:
        """Wait for groups with ``wanted`` numbers and take those that are there, up to ``missing``: the oldest first.

        With ``one_by_one`` it takes the first of the wanted numbers only.

        A step begins with its first complete group, and with whatever else is there by then. After that, half of the
        groups still missing must have come: a pass over several groups costs little more than one over a single group.
        So few passes are made, and the last one has one group only. What is too much for one call is left for the next.
        """
        enough = missing if self._whole else 1 if one_by_one or missing == self._batch else (missing + 1) // 2
        if one_by_one and not self._whole:
            wanted = wanted[:1]
        while True:
            if self._failure:
                raise self._failure
            ready = [number for number in self._groups if number in wanted]
            if len(ready) >= enough:
                ready.sort(key=lambda number: (self._groups[number].group.version, number))
                return self._take(ready[: 1 if one_by_one else missing])
            self._arrived.clear()
            await self._arrived.wait()

    def _take(self, numbers: list[int]) -> list[ClosedGroup]:
        taken: list[ClosedGroup] = []
        tokens = 0
        for number in numbers:
            tokens += _tokens(self._groups[number])
            if taken and tokens > CALL_TOKENS:
                break
            taken.append(self._groups.pop(number))
        return taken


def _tokens(closed: ClosedGroup) -> int:
    return sum(len(trajectory.tokens) for episode in closed.group.episodes for trajectory in episode.trajectories)


# Which group may begin: the rule that bounds staleness by construction, and its application.
#
# Step k consumes exactly the groups kB … kB+B-1 and makes version k+1. A group that begins at version v is consumed
# by step number // B, so its tokens are then number // B - v versions old; admitting only while that is at most
# ``max_staleness`` bounds every trained token, and no finished work is ever thrown away.
#
# With ``order = "arrival"`` step k consumes the first B groups that are complete. The same rule, for how many groups
# have begun, then bounds how many wait. A group that would grow too old is given up, and its number begins again; so
# each number has been consumed once at the end of a run.
#
# ``Admitting`` begins a task's groups by number as soon as the rule of each policy that is to be trained on them
# allows it: first those that an earlier run stored and did not consume, then new ones. It also waits for room for
# their episodes, in the environment and in front of the samplers: a group that begins later is played with a newer
# version. All policies of a task number their groups alike, so that a group which several need is played once, unless
# some would wait too long for others (``next_play``).


def may_begin(number: int, version: int, groups_per_step: int, max_staleness: int) -> bool:
    """Whether group ``number`` may begin while ``version`` is current."""
    return number < (max_staleness + version + 1) * groups_per_step


def has_room(members: int) -> bool:
    """Whether a task may begin a further group while so many members of its groups are to be played or are played.

    One place is enough: members begin one by one, and a group's last straggler holds no more than its own place.
    """
    return members < EPISODES


def step_groups(step: int, groups_per_step: int) -> range:
    """Numbers of the groups that optimizer step ``step`` (from 0) consumes."""
    return range(step * groups_per_step, (step + 1) * groups_per_step)


def _at_once(train: TrainSpec) -> bool:
    return train.deterministic or train.sampling == "difficulty"


class Admitted(Wanting, Protocol):
    """What the admission of groups needs to know of a trained policy."""

    pool: GroupPool
    """Where its groups wait for their step."""
    first: int
    """Number of the first group that it may not have consumed."""
    again: set[int]
    """Numbers of groups that are to begin again; taken out here."""

    @property
    def end(self) -> int:
        """Number of the group after its last."""

    def needs(self, number: int) -> bool:
        """Whether it is to be trained on group ``number``."""

    def may_begin(self, number: int, draining: bool) -> bool:
        """Whether its bound on staleness lets a group begin, ``number`` of its groups having begun before."""

    def give_up(self, number: int) -> None:
        """Have group ``number``, which has grown too old, begin again."""

    def held_up(self, number: int, began: float) -> None:
        """Group ``number`` has waited since ``began``, a moment of ``monotonic``, for a later version, and no group was
        being played."""


class Admitting:
    """The admission of one task's groups."""

    def __init__(
        self,
        experience: ExperienceTable,
        policies: Sequence[Admitted],
        moved: asyncio.Event,
        draining: asyncio.Event,
        together: bool = False,
        clock: Callable[[], float] = monotonic,
    ) -> None:
        """Once ``draining`` is set, only groups begin that the steps under way need. ``together``: no policy ever goes
        on without another that needs the same group, as in deterministic tasks, and with a curriculum, which goes by
        the groups of one of them."""
        self._experience = experience
        self._policies = policies
        self._draining = draining
        self._begun: dict[str, set[int]] = {}
        """By policy, numbers that have begun, of those behind its first."""
        self._stopped = False
        self._members = 0
        """Members of groups that were begun which are to be played, or are played."""
        self._moved = moved
        self._together = together or any(_at_once(policy.spec.train) for policy in policies)
        self._clock = clock
        self._waits = Waits(clock)
        self._alone: dict[str, int] = {}
        """By policy, the number below which it need not wait for others."""
        self._next: dict[str, int] = {}
        """By policy, a number up to which all have begun for it."""
        self._under_way: Counter[str] = Counter()
        """By policy, groups that have begun for it and are not closed."""

    def stop(self) -> None:
        """Begin no further group."""
        self._stopped = True
        self._moved.set()

    async def run(self, producer: Producer, background: Background) -> None:
        """Begin every group that some policy needs and that is not stored; a failure is raised by the pools."""
        try:
            self._begun = {policy.name: self._take_up(policy) for policy in self._policies}
        except Exception as error:
            return self._fail(error)
        self._next = {policy.name: policy.first for policy in self._policies}
        while (play := await self._allowed()) is not None:
            await producer.room(play.number, play.policies)
            if self._choose() != play:
                continue  # the engine may drain by now, or others may join in
            wanting = tuple(policy for policy in self._policies if policy.name in play.policies)
            self._more(wanting[0].spec.train.begun_members)
            producer.begin()
            for policy in wanting:
                self._begun[policy.name].add(play.number)
                self._under_way[policy.name] += 1
            background.produce(self._fill(producer, play.number, wanting))

    async def _allowed(self) -> NextPlay | None:
        """Wait until a play may begin; None: no further one will."""
        while not self._stopped:
            if (play := self._choose()) is not None:
                return play
            wishes = self._wishes()
            if not wishes and not self._may_return():
                return None
            began, idle = monotonic(), not self._members
            self._moved.clear()
            with suppress(TimeoutError):
                async with asyncio.timeout(self._patience(wishes)):
                    await self._moved.wait()
            for wish in wishes if idle else ():
                self._policy(wish).held_up(wish.number, began)
        return None

    def _may_return(self) -> bool:
        """Whether a group that has begun may grow too old, and so has to begin again."""
        return any(p.spec.train.order == "arrival" and p.needs(p.end - 1) for p in self._policies)

    def _policy(self, wish: Wish) -> Admitted:
        return next(one for one in self._policies if one.name == wish.policy)

    def _choose(self) -> NextPlay | None:
        """The play that may begin now."""
        if self._stopped or not has_room(self._members):
            return None
        wishes = self._wishes()
        play = next_play(wishes, self._alone)
        if play is None:
            for wish in wishes:
                if self._waits.left(wish.policy, self._starved(wish)) == 0:
                    self._alone[wish.policy] = self._bound(wish)
            play = next_play(wishes, self._alone)
        return play

    def _wishes(self) -> list[Wish]:
        """The next group of each policy that needs a further one."""
        draining, found = self._draining.is_set(), []
        for policy in self._policies:
            begun = self._begun[policy.name]
            number = min(self._next[policy.name], *policy.again) if policy.again else self._next[policy.name]
            begun -= policy.again
            policy.again.clear()
            while number in begun:
                number += 1
            self._next[policy.name] = number
            before = len(begun) if policy.spec.train.order == "arrival" else number
            if number < policy.end and policy.needs(number):
                found.append(Wish(policy.name, number, policy.may_begin(before, draining)))
        return found

    def _starved(self, wish: Wish) -> bool:
        """Whether only others keep a policy from going on, and nothing is being played for it."""
        free = not (self._together or self._draining.is_set())
        return free and wish.allowed and not self._under_way[wish.policy]

    def _patience(self, wishes: Sequence[Wish]) -> float | None:
        """Seconds until some policy goes on alone; None: none does before something moves."""
        if not has_room(self._members):
            return None
        left = min((self._waits.left(wish.policy, self._starved(wish)) for wish in wishes), default=inf)
        return left if left < inf else None

    def _bound(self, wish: Wish) -> int:
        """The number behind the last that a policy's bound allows at the moment."""
        policy = self._policy(wish)
        numbers = range(wish.number, policy.end)
        return next((number for number in numbers if not policy.may_begin(number, False)), policy.end)

    def _take_up(self, policy: Admitted) -> set[int]:
        """Put a policy's stored groups into its pool; return their numbers, and those that it consumed since its first.

        Groups that are too old begin again.
        """
        begun, rules = self._experience.consumed(policy.policy, policy.first), closing_rules(policy.spec)
        for group in self._experience.waiting(policy.policy):
            closed = close_group(group, rules)
            if not isinstance(closed, ClosedGroup) or group.number < policy.first:
                continue
            if group.version < policy.oldest:
                policy.give_up(group.number)
            else:
                policy.pool.put(closed)
                begun.add(group.number)
        return begun

    async def _fill(self, producer: Producer, number: int, wanting: Sequence[Admitted]) -> None:
        left = wanting[0].spec.train.begun_members
        left_out, began = {policy.name: policy for policy in wanting}, self._clock()

        def more(members: int) -> None:
            nonlocal left
            left += members
            self._more(members)

        def put(policy: str, closed: ClosedGroup) -> None:
            left_out.pop(policy).pool.put(closed)
            self._under_way[policy] -= 1
            self._waits.took(policy, self._clock() - began)
            self._moved.set()

        try:
            closed = await producer.fill(number, wanting, more, put)
            for name, policy in [*left_out.items()]:
                if name in closed:
                    put(name, closed[name])
                else:
                    self._under_way[name] -= 1
                    policy.give_up(number)
        except Exception as error:
            self._fail(error)
        finally:
            self._more(-left)

    def _more(self, members: int) -> None:
        """So many members more are to be played."""
        full = not has_room(self._members)
        self._members += members
        if full and has_room(self._members):
            self._moved.set()

    def _fail(self, error: Exception) -> None:
        for policy in self._policies:
            policy.pool.fail(error)
