"""Which group may begin, by the rule that bounds staleness, and complete groups that wait for their step.

Step k consumes exactly the groups kB … kB+B-1 and makes version k+1. A group that begins at version v is consumed by
step number // B, so its tokens are then number // B - v versions old. Admitting only while that is at most
``max_staleness`` bounds every trained token, and no finished work is thrown away.

With ``order = "arrival"`` step k consumes the first B groups that are complete. The same rule, for how many groups
have begun, then bounds how many wait. A group that would grow too old is given up, and its number begins again; so each
number has been consumed once at the end of a run.

All policies of a task number their groups alike, and a group that several need is run once for all. So a policy waits
for one whose bound does not allow the number yet. But it does not wait for ever: once nothing has been running for it
for as long as its groups take, it continues without the others. In such a group these speak as they are served and
learn nothing; the number is run again for them when their bound allows it. The wait is as long as what it would save,
the running of one more group. Whoever decides so, not knowing how long the others will need, spends at most twice the
time of one who knew (the ski rental: Karlin, Manasse, Rudolph and Sleator, "Competitive snoopy caching", Algorithmica
3, 1988).
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
"""Most tokens of the groups that are taken at once; the first may have more. Larger passes gain nothing, and while one
runs no other task has its turn."""
LEAST = 1.0
"""Seconds that a policy waits for others in any case: what is shorter comes and goes with the load of the machine."""
WEIGHT = 0.2
"""Of the newest group in the running mean of how long a policy's groups take."""


def may_begin(number: int, version: int, groups_per_step: int, max_staleness: int) -> bool:
    """True if group ``number`` may begin while ``version`` is current."""
    return number < (max_staleness + version + 1) * groups_per_step


def has_room(members: int) -> bool:
    """True if a task may begin a further group while this many samples of its groups still ask.

    One place is enough: samples begin one by one, and a group's last straggler holds no more than its own place.
    """
    return members < EPISODES


def step_groups(step: int, groups_per_step: int) -> range:
    """Numbers of the groups that optimizer step ``step`` (from 0) consumes."""
    return range(step * groups_per_step, (step + 1) * groups_per_step)


class PolicyGroups:
    """The groups of one policy: which of them may begin, and the complete ones until their step takes them."""

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
        """Numbers of groups that were given up since admission looked, as they had grown too old."""
        self.given_up = 0
        """Groups that were given up since the last step."""
        self.running: set[GroupRun] = set()
        self.taken = version
        """Number of the first version whose step has not taken all of its groups."""
        self.served = version
        self.committed = version
        self.finished = False
        """True once it was trained to its end; it takes no more groups."""
        self.exposed = ExposedTime()
        self._moved = moved
        self._complete: dict[int, ClosedGroup] = {}
        self._arrived = asyncio.Event()
        self._failure: BaseException | None = None

    @property
    def oldest(self) -> int:
        """Number of the oldest version whose groups its next step may consume."""
        return self.taken - self.spec.train.max_staleness

    def needs(self, number: int) -> bool:
        """True if it is to be trained on group ``number``."""
        return not self.finished and self.first <= number < self.end

    def may_begin(self, number: int, draining: bool) -> bool:
        """True if its bound on staleness lets a group begin, ``number`` of its groups having begun before."""
        bound = 0 if draining else self.spec.train.max_staleness
        return self.served >= self.oldest and may_begin(number, self.served, self.batch, bound)

    def held_up(self, number: int, began: float) -> None:
        """Group ``number`` has waited since ``began``, a moment of ``monotonic``, for a later version, and no group was
        running: count the time since its commit."""
        if may_begin(number, self.committed, self.batch, self.spec.train.max_staleness):
            self.exposed.held_up(began)

    def put(self, group: ClosedGroup) -> None:
        """Add a complete group."""
        self._complete[group.group.number] = group
        self._arrived.set()

    def fail(self, error: BaseException) -> None:
        """Raise ``error`` in whoever takes next."""
        self._failure = self._failure or error
        self._arrived.set()

    def give_up(self, number: int) -> None:
        """Have group ``number``, which has grown too old, begin again."""
        self.again.add(number)
        self.given_up += 1
        self._moved.set()

    def give_up_stale(self) -> None:
        """Give up complete groups that no step may consume any more."""
        for number in [n for n, closed in self._complete.items() if closed.group.version < self.oldest]:
            del self._complete[number]
            self.give_up(number)

    def serve(self, version: int) -> None:
        """A version is served from now on; groups that have grown too old are ended."""
        self.served = version
        self._moved.set()
        for run in self.running:
            if run.stale:
                run.unneeded.set()

    def finish(self) -> None:
        """It was trained to its end."""
        self.finished = True
        self._moved.set()

    async def take_ready(self, wanted: Sequence[int], missing: int, one_by_one: bool = False) -> list[ClosedGroup]:
        """Wait for groups with ``wanted`` numbers and take those that are there, up to ``missing``: the oldest first.

        With ``one_by_one`` it takes the first of the wanted numbers only.

        A step begins with its first complete group, and with whatever else is there by then. After that, half of the
        groups still missing must have come: a pass over several groups costs little more than one over a single group.
        So few passes are made, and the last one has one group only. What is too much for one call is left for the next.
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
    """True if the policy's bound on staleness lets it begin."""


@dataclass(frozen=True)
class NextGroup:
    """A group that may begin."""

    number: int
    policies: frozenset[str]
    """Those that are trained on it."""


def next_group(needs: Sequence[Need], ahead: Mapping[str, int]) -> NextGroup | None:
    """The group to begin, or None if all have to wait: the lowest number for all who need it, else for some.

    ``ahead``: by policy, the number below which it need not wait for others.
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
    """For how long nothing has been running for policies while only others kept them from continuing."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._since: dict[str, float] = {}
        self._takes: dict[str, float] = {}
        """By policy, seconds that a group takes."""

    def took(self, policy: str, seconds: float) -> None:
        """A group of a policy closed after so long."""
        before = self._takes.get(policy, seconds)
        self._takes[policy] = before + WEIGHT * (seconds - before)

    def left(self, policy: str, starved: bool) -> float:
        """Seconds that a policy still has to wait before it goes ahead; ``starved``: it has to wait at all."""
        if not starved:
            self._since.pop(policy, None)
            return inf
        now = self._clock()
        return max(0.0, self._since.setdefault(policy, now) + max(LEAST, self._takes.get(policy, inf)) - now)


class Admission:
    """Begins a task's groups by number as soon as the rule of each policy that is to be trained on them allows it.

    Groups that an earlier run stored and did not consume are taken up first. It also waits for room for their samples,
    in the environment and in front of the samplers: a group that begins later is run with a newer version.
    """

    def __init__(
        self,
        experience: ExperienceTable,
        policies: Sequence[PolicyGroups],
        moved: asyncio.Event,
        draining: asyncio.Event,
        clock: Callable[[], float] = monotonic,
    ) -> None:
        """Once ``draining`` is set, only groups begin that the steps in progress need. In deterministic tasks, and with
        a curriculum, which goes by the groups of one policy, no policy continues without another that needs the same
        group."""
        self._experience = experience
        self._policies = {policy.name: policy for policy in policies}
        self._draining = draining
        self._begun: dict[str, set[int]] = {}
        """By policy, numbers that have begun, of those behind its first."""
        self._stopped = False
        self._samples = 0
        """Samples of groups in progress that still ask."""
        self._moved = moved
        trains = [policy.spec.train for policy in policies]
        self._together = any(train.deterministic or train.sampling == "difficulty" for train in trains)
        self._clock = clock
        self._waits = Waits(clock)
        self._ahead: dict[str, int] = {}
        """By policy, the number below which it need not wait for others."""
        self._next: dict[str, int] = {policy.name: policy.first for policy in policies}
        """By policy, a number up to which all have begun for it."""
        self._open: Counter[str] = Counter()
        """By policy, groups that have begun for it and are not closed."""

    def stop(self) -> None:
        """Begin no further group."""
        self._stopped = True
        self._moved.set()

    async def run(self, runner: GroupRunner, background: Background) -> None:
        """Begin every group that some policy needs and that is not stored; a failure is raised by ``take_ready``."""
        try:
            self._begun = {policy.name: self._take_up(policy) for policy in self._policies.values()}
        except Exception as error:
            return self._fail(error)
        while (group := await self._allowed()) is not None:
            await runner.room(group.number, group.policies)
            if self._choose() != group:
                continue  # the engine may drain by now, or others may join in
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
        """Wait until a group may begin; None: no further one will."""
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
        """True if a group that has begun may grow too old, and so has to begin again."""
        return any(policy.arrival and policy.needs(policy.end - 1) for policy in self._policies.values())

    def _choose(self) -> NextGroup | None:
        """The group that may begin now."""
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
        """The next group of each policy that needs a further one."""
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
        """True if only others keep a policy from continuing, and nothing is running for it."""
        free = not (self._together or self._draining.is_set())
        return free and need.allowed and not self._open[need.policy]

    def _patience(self, needs: Sequence[Need]) -> float | None:
        """Seconds until some policy goes ahead; None: none does before something moves."""
        if not has_room(self._samples):
            return None
        left = min((self._waits.left(need.policy, self._starved(need)) for need in needs), default=inf)
        return left if left < inf else None

    def _bound(self, need: Need) -> int:
        """The number behind the last that a policy's bound allows at the moment."""
        policy = self._policies[need.policy]
        numbers = range(need.number, policy.end)
        return next((number for number in numbers if not policy.may_begin(number, False)), policy.end)

    def _take_up(self, policy: PolicyGroups) -> set[int]:
        """Take up a policy's stored groups; return their numbers, and those that it consumed since its first.

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
                policy.put(closed)
                begun.add(group.number)
        return begun

    def closed(self, policy: PolicyGroups, group: ClosedGroup, seconds: float) -> None:
        """A group of a policy closed, ``seconds`` after it began."""
        policy.put(group)
        self._open[policy.name] -= 1
        self._waits.took(policy.name, seconds)
        self._moved.set()

    def samples(self, change: int) -> None:
        """The number of samples that still ask changes."""
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
    """A group that has begun, until it is closed for all of its policies."""

    def __init__(self, admission: Admission, policies: Sequence[PolicyGroups]) -> None:
        self.policies = policies
        self.waiting = {policy.name: policy for policy in policies}
        """Those for which it is not closed."""
        self.samples = 0
        """Its samples that still ask."""
        self._admission = admission
        self._began = admission.now()
        self.on_samples(policies[0].spec.train.begun_members)

    def on_samples(self, change: int) -> None:
        self.samples += change
        self._admission.samples(change)

    def on_group(self, policy: str, group: ClosedGroup) -> None:
        self._admission.closed(self.waiting.pop(policy), group, self._admission.now() - self._began)
