"""Decides which group may begin; runs a loop's background work."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterator, Sequence
from contextlib import contextmanager, suppress
from math import inf
from types import TracebackType
from typing import Any

from ..clock import monotonic
from ..rollout.episodes import EPISODES
from ..spec.task import TaskSpec
from ..store.experience import ExperienceTable
from ..trainer.advantages import ClosedGroup, close_group
from .groups import Attempt, GroupRunner
from .opening import closing_rules


class Background:
    """An async context; leaving it cancels its tasks. A failing task is raised from it."""

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[None]] = set()
        self._producers: set[asyncio.Task[None]] = set()
        self._body: asyncio.Task[Any] | None = None
        self._failure: BaseException | None = None

    async def __aenter__(self) -> Background:
        self._body = asyncio.current_task()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        body, self._body = self._body, None  # a later failure interrupts nothing
        if self._failure is not None and body is not None:
            if not isinstance(error, asyncio.CancelledError):
                with suppress(asyncio.CancelledError):
                    await asyncio.sleep(0)  # the body ended before its cancellation arrived
            body.uncancel()
        running = [*self._tasks, *self._producers]
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)
        if self._failure is not None and (error is None or isinstance(error, asyncio.CancelledError)):
            raise self._failure from error

    def start(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._ended)
        return task

    def produce(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.ensure_future(work)
        self._producers.add(task)
        task.add_done_callback(self._producers.discard)

    def stop_producing(self) -> None:
        for task in self._producers:
            task.cancel()

    async def finish_producing(self) -> None:
        while self._producers:
            await asyncio.wait(self._producers)

    async def finish(self) -> None:
        while self._tasks:
            await asyncio.wait(self._tasks)
            await asyncio.sleep(0)  # lets a failure cancel this body before it continues

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if task.cancelled() or task.exception() is None:
            return
        if self._failure is None and self._body is not None:
            self._failure = task.exception()
            self._body.cancel()


# Step k consumes groups kB … kB+B-1 and makes version k+1. ``max_staleness`` bounds the age of a group begun at version
# v: number // B - v.
#
# With ``order = "arrival"`` step k consumes the first B complete groups; a too old group begins again.
#
# A group for several policies runs once. After ``PATIENCE`` a policy continues without the others; the number runs
# again for them.

CALL_TOKENS = 16_384
"""Most tokens taken at once, except the first group's. Larger passes gain nothing and delay other tasks."""
PATIENCE = 10.0
"""Seconds that a policy without running groups waits for others."""


def may_begin(number: int, version: int, groups_per_step: int, max_staleness: int) -> bool:
    """True if group ``number`` may begin while ``version`` is current."""
    return number < (max_staleness + version + 1) * groups_per_step


def has_room(members: int) -> bool:
    """True if a task with ``members`` asking samples may begin a group.

    One free place is enough: samples begin one by one.
    """
    return members < EPISODES


def step_groups(step: int, groups_per_step: int) -> range:
    """Groups of optimizer step ``step`` (from 0)."""
    return range(step * groups_per_step, (step + 1) * groups_per_step)


class PolicyGroups:
    """One policy's begun and complete groups, until their step."""

    def __init__(self, name: str, policy: int, spec: TaskSpec, version: int, moved: asyncio.Event) -> None:
        """``policy``: in the store; ``version``: the served version's number; ``moved`` is set when groups may begin,
        or none will."""
        self.name = name
        self.policy = policy
        self.spec = spec
        self.batch = spec.train.groups_per_step
        self.arrival = spec.train.order == "arrival"
        self.first = 0 if self.arrival else version * self.batch
        """Number of the first group that it may not have consumed."""
        self.end = spec.steps * self.batch
        """Number of the group after its last."""
        self.begun: set[int] = set()
        """Numbers of the groups that have begun, from ``first`` on."""
        self.open = 0
        """Begun groups that are not closed."""
        self.starved_since = inf
        """When it began to wait for other policies only."""
        self.ahead = 0
        """The number below which it need not wait for others."""
        self._next = self.first
        """A number below which all groups have begun."""
        self.given_up = 0
        self.running: set[Attempt] = set()
        self.taken = version
        """Number of the first version with a step that has not taken all of its groups."""
        self.served = version
        self.committed = version
        self.finished = False
        self.waited = {"publish_wait_seconds": 0.0, "begin_wait_seconds": 0.0}
        """*Exposed* time of publishing since the last commit: steps, and groups, wait (RollArt, arXiv 2512.22560)."""
        self._commit_time = self._serve_time = -inf
        """Of the newest version; it is served at ``inf`` until then."""
        self._moved = moved
        self._complete: dict[int, ClosedGroup] = {}
        self._arrived = asyncio.Event()
        self._failure: BaseException | None = None

    @property
    def oldest(self) -> int:
        return self.taken - self.spec.train.max_staleness

    def needs(self, number: int) -> bool:
        return not self.finished and self.first <= number < self.end

    def next_number(self) -> int:
        while self._next in self.begun:
            self._next += 1
        return self._next

    def may_begin(self, number: int, draining: bool) -> bool:
        bound = 0 if draining else self.spec.train.max_staleness
        before = len(self.begun) if self.arrival else number
        return self.served >= self.oldest and may_begin(before, self.served, self.batch, bound)

    def held_up(self, number: int, began: float) -> None:
        """Group ``number`` has waited since ``began`` (of ``monotonic``), and none ran.

        What counts is the time in which the newest version was committed, and not served.
        """
        if may_begin(number, self.committed, self.batch, self.spec.train.max_staleness):
            unserved = min(monotonic(), self._serve_time) - max(began, self._commit_time)
            self.waited["begin_wait_seconds"] += max(0.0, unserved)

    @contextmanager
    def step_waits(self) -> Iterator[None]:
        began = monotonic()
        yield
        self.waited["publish_wait_seconds"] += monotonic() - began

    def commit(self, version: int) -> None:
        self.committed = version
        self._commit_time, self._serve_time = monotonic(), inf

    def put(self, group: ClosedGroup) -> None:
        self._complete[group.group.number] = group
        self._arrived.set()
        self._moved.set()

    def fail(self, error: BaseException) -> None:
        self._failure = self._failure or error
        self._arrived.set()

    def give_up(self, number: int) -> None:
        self.begun.discard(number)
        self._next = min(self._next, number)
        self.given_up += 1
        self._moved.set()

    def give_up_stale(self) -> None:
        for number in [n for n, closed in self._complete.items() if closed.group.version < self.oldest]:
            del self._complete[number]
            self.give_up(number)

    def serve(self, version: int) -> None:
        self.served = version
        self._serve_time = monotonic()
        self._moved.set()
        for attempt in self.running:
            if attempt.stale:
                attempt.unneeded.set()

    def finish(self) -> None:
        self.finished = True
        self._moved.set()

    async def take_ready(self, wanted: Sequence[int], missing: int, one_by_one: bool = False) -> list[ClosedGroup]:
        """Take up to ``missing`` of ``wanted``, oldest first.

        A step begins with its first complete group, then waits for half of the missing ones: one pass over several
        costs little more. ``one_by_one``: only the first wanted.
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


class Admission:
    """Begins groups by number once each policy's rule allows it; stored ones first.

    It waits for room, since later groups use newer versions.
    """

    def __init__(
        self,
        experience: ExperienceTable,
        policies: Sequence[PolicyGroups],
        moved: asyncio.Event,
        draining: asyncio.Event,
        clock: Callable[[], float] = monotonic,
    ) -> None:
        """Once ``draining`` is set, only groups of steps in progress begin. In deterministic tasks, and with a
        curriculum, no policy continues without the others."""
        self._experience = experience
        self._policies = policies
        self._moved = moved
        self._draining = draining
        self._clock = clock
        self._together = any(p.spec.train.deterministic or p.spec.train.sampling == "difficulty" for p in policies)
        self._stopped = False
        self._samples = 0

    def stop(self) -> None:
        self._stopped = True
        self._moved.set()

    async def run(self, runner: GroupRunner, background: Background) -> None:
        try:
            for policy in self._policies:
                self._take_up(policy)
        except Exception as error:
            return self._fail(error)
        while (group := await self._allowed()) is not None:
            number, policies = group
            await runner.room(number, [policy.name for policy in policies])
            if self._choose() != group:
                continue  # the engine may drain by now, or others may join
            run = GroupRun(self, number, policies)
            runner.begin()
            background.produce(self._fill(runner, run))

    async def _fill(self, runner: GroupRunner, run: GroupRun) -> None:
        try:
            await runner.fill(run)
            run.give_up()
        except Exception as error:
            self._fail(error)
        finally:
            run.count(-run.samples)

    async def _allowed(self) -> tuple[int, list[PolicyGroups]] | None:
        while not self._stopped:
            if (group := self._choose()) is not None:
                return group
            needs = self._needs()
            if not needs and not any(policy.arrival and policy.needs(policy.end - 1) for policy in self._policies):
                return None
            began, idle = monotonic(), not self._samples
            starved = min((policy.starved_since for policy, _ in needs), default=inf)
            left = starved + PATIENCE - self._clock() if has_room(self._samples) else inf
            self._moved.clear()
            with suppress(TimeoutError):
                async with asyncio.timeout(left if left < inf else None):
                    await self._moved.wait()
            for policy, number in needs if idle else ():
                policy.held_up(number, began)
        return None

    def _choose(self) -> tuple[int, list[PolicyGroups]] | None:
        if self._stopped or not has_room(self._samples) or not (needs := self._needs()):
            return None
        draining, lowest = self._draining.is_set(), min(number for _, number in needs)
        everyone = [policy for policy, number in needs if number == lowest]
        allowed = [policy for policy, number in needs if policy.may_begin(number, draining)]
        if all(policy in allowed for policy in everyone):
            return lowest, everyone
        for policy in self._policies:
            starved = policy in allowed and not policy.open and not self._together and not draining
            policy.starved_since = min(policy.starved_since, self._clock()) if starved else inf
            if self._clock() >= policy.starved_since + PATIENCE:
                policy.ahead = (policy.spec.train.max_staleness + policy.served + 1) * policy.batch
        going = [(number, policy) for policy, number in needs if policy in allowed and number < policy.ahead]
        lowest = min((number for number, _ in going), default=0)
        return (lowest, [policy for number, policy in going if number == lowest]) if going else None

    def _needs(self) -> list[tuple[PolicyGroups, int]]:
        needs = [(policy, policy.next_number()) for policy in self._policies]
        return [(policy, number) for policy, number in needs if number < policy.end and policy.needs(number)]

    def _take_up(self, policy: PolicyGroups) -> None:
        rules = closing_rules(policy.spec)
        policy.begun = self._experience.consumed(policy.policy, policy.first)
        for group in self._experience.waiting(policy.policy):
            closed = close_group(group, rules)
            if not isinstance(closed, ClosedGroup) or group.number < policy.first:
                continue
            if group.version < policy.oldest:
                policy.give_up(group.number)
            else:
                policy.put(closed)
                policy.begun.add(group.number)

    def count(self, change: int) -> None:
        """``change``: of the samples that ask."""
        full = not has_room(self._samples)
        self._samples += change
        if full and has_room(self._samples):
            self._moved.set()

    def _fail(self, error: Exception) -> None:
        for policy in self._policies:
            policy.fail(error)


class GroupRun:
    """A begun group, until it is closed for all its policies."""

    def __init__(self, admission: Admission, number: int, policies: Sequence[PolicyGroups]) -> None:
        self.number = number
        self.policies = policies
        self.waiting = {policy.name: policy for policy in policies}
        """By name, those that have no closed group yet."""
        self.samples = 0
        """Samples that may still ask."""
        self._admission = admission
        self.count(policies[0].spec.train.begun_members)
        for policy in policies:
            policy.begun.add(number)
            policy.open += 1

    def count(self, change: int) -> None:
        self.samples += change
        self._admission.count(change)

    def close(self, policy: str, group: ClosedGroup) -> None:
        groups = self.waiting.pop(policy)
        groups.open -= 1
        groups.put(group)

    def give_up(self) -> None:
        """Its number begins again for those that still wait."""
        for policy in self.waiting.values():
            policy.open -= 1
            policy.give_up(self.number)
