"""Decides which group may begin, by the staleness bound, and keeps complete groups until their step.

Step k consumes exactly the groups kB … kB+B-1 and makes version k+1. A group that begins at version v is consumed by
step number // B, so its tokens are then number // B - v versions old. ``max_staleness`` bounds that number, and no
finished work is lost.

With ``order = "arrival"`` step k consumes the first B complete groups, and the same rule bounds how many wait. A group
that becomes too old is given up, and its number begins again.

A group that several policies need is run once for all. So a policy may wait for another one's bound. After the
duration of one of its groups it continues without the others; the number is run again for them later. This wait costs
at most twice the optimum (ski rental: Karlin et al., "Competitive snoopy caching", Algorithmica 3, 1988).
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from math import inf

from ..clock import monotonic
from ..rollout import EPISODES
from ..spec import TaskSpec
from ..store import ExperienceTable
from ..training import ClosedGroup, close_group
from .background import Background
from .groups import GroupListener, GroupRun, GroupRunner
from .publishing import ExposedTime
from .settings import closing_rules

CALL_TOKENS = 16_384
"""Most tokens of the groups that are taken at once; the first group may have more. Larger passes gain nothing and
delay other tasks."""
LEAST = 1.0
"""Least seconds that a policy waits for others: shorter delays are noise of the machine's load."""
WEIGHT = 0.2
"""Weight of the newest group in the running mean of a policy's group duration."""


def may_begin(number: int, version: int, groups_per_step: int, max_staleness: int) -> bool:
    """True if group ``number`` may begin while ``version`` is current."""
    return number < (max_staleness + version + 1) * groups_per_step


def has_room(members: int) -> bool:
    """True if a task may begin a further group while ``members`` samples of its groups still ask.

    One place is enough: samples begin one by one.
    """
    return members < EPISODES


def step_groups(step: int, groups_per_step: int) -> range:
    """Numbers of the groups that optimizer step ``step`` (from 0) consumes."""
    return range(step * groups_per_step, (step + 1) * groups_per_step)


class PolicyGroups:
    """The groups of one policy: the rule for their begin, and the complete ones until their step takes them."""

    def __init__(self, name: str, policy: int, spec: TaskSpec, version: int, moved: asyncio.Event) -> None:
        """``policy``: its number in the store; ``version``: the number of the version at which it stands, which is
        served; ``moved`` is set when a further group may begin, or none will.
        """
        self.name = name
        self.policy = policy
        self.spec = spec
        self.batch = spec.train.groups_per_step
        self.arrival = spec.train.order == "arrival"
        self.first = 0 if self.arrival else version * self.batch
        """Number of the first group that it may not have consumed."""
        self.end = spec.steps * self.batch
        """Number of the group after its last."""
        self.again: set[int] = set()
        """Numbers of groups that were given up as too old since admission last looked."""
        self.given_up = 0
        self.running: set[GroupRun] = set()
        self.taken = version
        """Number of the first version with a step that has not taken all of its groups."""
        self.served = version
        self.committed = version
        self.finished = False
        self.exposed = ExposedTime()
        self._moved = moved
        self._complete: dict[int, ClosedGroup] = {}
        self._arrived = asyncio.Event()
        self._failure: BaseException | None = None

    @property
    def oldest(self) -> int:
        return self.taken - self.spec.train.max_staleness

    def needs(self, number: int) -> bool:
        return not self.finished and self.first <= number < self.end

    def may_begin(self, number: int, draining: bool) -> bool:
        bound = 0 if draining else self.spec.train.max_staleness
        return self.served >= self.oldest and may_begin(number, self.served, self.batch, bound)

    def held_up(self, number: int, began: float) -> None:
        """Count the time since the newest commit in which group ``number`` waited (from ``began``) and none was
        running.
        """
        if may_begin(number, self.committed, self.batch, self.spec.train.max_staleness):
            self.exposed.held_up(began)

    def put(self, group: ClosedGroup) -> None:
        self._complete[group.group.number] = group
        self._arrived.set()

    def fail(self, error: BaseException) -> None:
        self._failure = self._failure or error
        self._arrived.set()

    def give_up(self, number: int) -> None:
        self.again.add(number)
        self.given_up += 1
        self._moved.set()

    def give_up_stale(self) -> None:
        for number in [n for n, closed in self._complete.items() if closed.group.version < self.oldest]:
            del self._complete[number]
            self.give_up(number)

    def serve(self, version: int) -> None:
        self.served = version
        self._moved.set()
        for run in self.running:
            if run.stale:
                run.unneeded.set()

    def finish(self) -> None:
        self.finished = True
        self._moved.set()

    async def take_ready(self, wanted: Sequence[int], missing: int, one_by_one: bool = False) -> list[ClosedGroup]:
        """Wait for groups with ``wanted`` numbers and take those that are there, up to ``missing``, the oldest first.

        A step begins with its first complete group. After that, half of the missing groups must have come, because a
        pass over several groups costs little more than over one. ``one_by_one``: only the first wanted number.
        """
        enough = 1 if one_by_one or missing == self.batch else (missing + 1) // 2
        if one_by_one:
            wanted = wanted[:1]
        while True:
            if self._failure:
                raise self._failure
            ready = [number for number in self._complete if number in wanted]
            if len(ready) >= enough:
                ready.sort(key=lambda number: (self._complete[number].group.version, number))
                return self._take(ready[: 1 if one_by_one else missing])
            self._arrived.clear()
            await self._arrived.wait()

    def _take(self, numbers: list[int]) -> list[ClosedGroup]:
        taken: list[ClosedGroup] = []
        tokens = 0
        for number in numbers:
            tokens += sum(len(t.tokens) for e in self._complete[number].group.episodes for t in e.trajectories)
            if taken and tokens > CALL_TOKENS:
                break
            taken.append(self._complete.pop(number))
        return taken


@dataclass(frozen=True)
class Need:
    """The next group that a policy needs."""

    policy: str
    number: int
    allowed: bool
    """True if the policy's staleness bound lets it begin."""


@dataclass(frozen=True)
class NextGroup:
    """A group that may begin."""

    number: int
    policies: frozenset[str]


def next_group(needs: Sequence[Need], ahead: Mapping[str, int]) -> NextGroup | None:
    """The group to begin, or None if all have to wait: the lowest number for all who need it, else for some.

    ``ahead``: for each policy, the number below which it need not wait for others.
    """
    first = min((need.number for need in needs), default=0)
    for number in sorted({need.number for need in needs}):
        here = [need for need in needs if need.number == number]
        ready = frozenset(need.policy for need in here if need.allowed)
        if number == first and len(ready) == len(here):
            return NextGroup(number, ready)
        going = frozenset(policy for policy in ready if number < ahead.get(policy, 0))
        if going:
            return NextGroup(number, going)
    return None


class Waits:
    """Measures how long policies wait only for others while nothing runs for them."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._since: dict[str, float] = {}
        self._takes: dict[str, float] = {}
        """Seconds of a group, by policy."""

    def took(self, policy: str, seconds: float) -> None:
        before = self._takes.get(policy, seconds)
        self._takes[policy] = before + WEIGHT * (seconds - before)

    def left(self, policy: str, starved: bool) -> float:
        """Seconds that a policy still has to wait before it continues without others; ``starved``: it has to wait."""
        if not starved:
            self._since.pop(policy, None)
            return inf
        now = self._clock()
        return max(0.0, self._since.setdefault(policy, now) + max(LEAST, self._takes.get(policy, inf)) - now)


class Admission:
    """Begins a task's groups by number as soon as the rule of each policy that trains on them allows it.

    Stored groups of an earlier run come first. It waits for room, since a later group uses a newer version.
    """

    def __init__(
        self,
        experience: ExperienceTable,
        policies: Sequence[PolicyGroups],
        moved: asyncio.Event,
        draining: asyncio.Event,
        clock: Callable[[], float] = monotonic,
    ) -> None:
        """Once ``draining`` is set, only groups for the steps in progress begin. In deterministic tasks, and with
        a curriculum, which goes by the groups of one policy, no policy continues without another that needs the same
        group."""
        self._experience = experience
        self._policies = {policy.name: policy for policy in policies}
        self._draining = draining
        self._begun: dict[str, set[int]] = {}
        """By policy, begun numbers from its first group on."""
        self._stopped = False
        self._samples = 0
        self._moved = moved
        trains = [policy.spec.train for policy in policies]
        self._together = any(train.deterministic or train.sampling == "difficulty" for train in trains)
        self._clock = clock
        self._waits = Waits(clock)
        self._ahead: dict[str, int] = {}
        """By policy, the number below which it need not wait for others."""
        self._next: dict[str, int] = {policy.name: policy.first for policy in policies}
        """By policy, a number below which all groups have begun."""
        self._open: Counter[str] = Counter()
        """By policy, begun groups that are not closed."""

    def stop(self) -> None:
        self._stopped = True
        self._moved.set()

    async def run(self, runner: GroupRunner, background: Background) -> None:
        try:
            self._begun = {policy.name: self._take_up(policy) for policy in self._policies.values()}
        except Exception as error:
            return self._fail(error)
        while (group := await self._allowed()) is not None:
            await runner.room(group.number, group.policies)
            if self._choose() != group:
                continue  # the engine may drain by now, or others may join
            policies = tuple(policy for policy in self._policies.values() if policy.name in group.policies)
            filling = Filling(self, policies)
            runner.begin()
            for policy in policies:
                self._begun[policy.name].add(group.number)
                self._open[policy.name] += 1
            background.produce(self._fill(runner, group.number, filling))

    async def _fill(self, runner: GroupRunner, number: int, filling: Filling) -> None:
        try:
            closed = await runner.fill(number, filling.policies, filling)
            for name in [*filling.waiting]:
                if name in closed:
                    filling.on_group(name, closed[name])
                else:
                    self._open[name] -= 1
                    self._policies[name].give_up(number)
        except Exception as error:
            self._fail(error)
        finally:
            filling.on_samples(-filling.samples)

    async def _allowed(self) -> NextGroup | None:
        while not self._stopped:
            if (group := self._choose()) is not None:
                return group
            needs = self._needs()
            if not needs and not self._may_return():
                return None
            began, idle = monotonic(), not self._samples
            self._moved.clear()
            with suppress(TimeoutError):
                async with asyncio.timeout(self._patience(needs)):
                    await self._moved.wait()
            for need in needs if idle else ():
                self._policies[need.policy].held_up(need.number, began)
        return None

    def _may_return(self) -> bool:
        return any(policy.arrival and policy.needs(policy.end - 1) for policy in self._policies.values())

    def _choose(self) -> NextGroup | None:
        if self._stopped or not has_room(self._samples):
            return None
        needs = self._needs()
        group = next_group(needs, self._ahead)
        if group is None:
            for need in needs:
                if self._waits.left(need.policy, self._starved(need)) == 0:
                    self._ahead[need.policy] = self._bound(need)
            group = next_group(needs, self._ahead)
        return group

    def _needs(self) -> list[Need]:
        draining, needs = self._draining.is_set(), []
        for name, policy in self._policies.items():
            begun = self._begun[name]
            number = min(self._next[name], *policy.again) if policy.again else self._next[name]
            begun -= policy.again
            policy.again.clear()
            while number in begun:
                number += 1
            self._next[name] = number
            before = len(begun) if policy.arrival else number
            if number < policy.end and policy.needs(number):
                needs.append(Need(name, number, policy.may_begin(before, draining)))
        return needs

    def _starved(self, need: Need) -> bool:
        free = not (self._together or self._draining.is_set())
        return free and need.allowed and not self._open[need.policy]

    def _patience(self, needs: Sequence[Need]) -> float | None:
        if not has_room(self._samples):
            return None
        left = min((self._waits.left(need.policy, self._starved(need)) for need in needs), default=inf)
        return left if left < inf else None

    def _bound(self, need: Need) -> int:
        policy = self._policies[need.policy]
        numbers = range(need.number, policy.end)
        return next((number for number in numbers if not policy.may_begin(number, False)), policy.end)

    def _take_up(self, policy: PolicyGroups) -> set[int]:
        begun, rules = self._experience.consumed(policy.policy, policy.first), closing_rules(policy.spec)
        for group in self._experience.waiting(policy.policy):
            closed = close_group(group, rules)
            if not isinstance(closed, ClosedGroup) or group.number < policy.first:
                continue
            if group.version < policy.oldest:
                policy.give_up(group.number)
            else:
                policy.put(closed)
                begun.add(group.number)
        return begun

    def closed(self, policy: PolicyGroups, group: ClosedGroup, seconds: float) -> None:
        policy.put(group)
        self._open[policy.name] -= 1
        self._waits.took(policy.name, seconds)
        self._moved.set()

    def samples(self, change: int) -> None:
        full = not has_room(self._samples)
        self._samples += change
        if full and has_room(self._samples):
            self._moved.set()

    def now(self) -> float:
        return self._clock()

    def _fail(self, error: Exception) -> None:
        for policy in self._policies.values():
            policy.fail(error)


class Filling(GroupListener):
    """A begun group until it is closed for all of its policies."""

    def __init__(self, admission: Admission, policies: Sequence[PolicyGroups]) -> None:
        self.policies = policies
        self.waiting = {policy.name: policy for policy in policies}
        self.samples = 0
        self._admission = admission
        self._began = admission.now()
        self.on_samples(policies[0].spec.train.begun_members)

    def on_samples(self, change: int) -> None:
        self.samples += change
        self._admission.samples(change)

    def on_group(self, policy: str, group: ClosedGroup) -> None:
        self._admission.closed(self.waiting.pop(policy), group, self._admission.now() - self._began)
