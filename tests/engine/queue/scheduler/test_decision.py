"""Who starts, what the others are told, and that nobody is forgotten."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import replace

import pytest
from hypothesis import given, settings, strategies as st

from marlaas.engine.queue.scheduler.decision import Act, Situation, Verdict, decide
from marlaas.engine.store.rows import Reason, ReasonCode, Tenant
from marlaas.engine.store.tasks import USUAL, Needed, QueuedTask

from ....examples import examples

STATES = ("submitted", "queued", "running", "paused")
TENANTS = ("a", "b", "c")
NOW = 1000.0
BROKEN = Reason(ReasonCode.BLOCKED, "it is broken")
REMEDY = "`marlaas retry 12 13` runs both."


def situation(slots: int = 8, running: tuple[int, ...] = (), **more: object) -> Situation:
    tenants = more.pop("tenants", {})
    assert isinstance(tenants, dict)
    world = Situation(NOW, slots, set(running), {}, set(), lambda name: tenants.get(name, USUAL), {})
    return replace(world, **more)  # type: ignore[arg-type]


def queue(*tenants: str, state: str = "queued") -> list[QueuedTask]:
    """Tasks 1, 2, … of these tenants."""
    return [QueuedTask(number, tenant, state) for number, tenant in enumerate(tenants, 1)]


def waits(verdicts: dict[int, Verdict]) -> dict[int, str]:
    return {number: verdict.reason.words for number, verdict in verdicts.items() if verdict.act is Act.WAIT}


def starts(verdicts: dict[int, Verdict]) -> list[int]:
    return [number for number, verdict in verdicts.items() if verdict.act is Act.START]


@st.composite
def worlds(draw: st.DrawFn) -> tuple[list[QueuedTask], Situation]:
    """A queue that an engine may meet, and the world around it."""
    tenant = st.builds(
        Tenant, st.sampled_from([0.001, 0.5, 1.0, 3.0]), st.integers(0, 3), st.sampled_from([0, 100, 10**9])
    )
    tenants = {name: draw(tenant) for name in TENANTS}
    needed = st.builds(Needed, st.just(99), st.just("other"), st.sampled_from((*STATES, "failed", "cancelled", "")),
                       st.just(3), st.just(9))  # fmt: skip
    task = st.builds(
        QueuedTask,
        st.just(0),
        st.sampled_from(TENANTS),
        st.sampled_from(STATES),
        priority=st.integers(-2, 2),
        due=st.sampled_from([None, NOW - 1, NOW + 1, NOW + 4000]),
        cause=st.just("try 1 of 2: it broke"),
        needs=st.one_of(st.just(()), st.lists(needed, min_size=1, max_size=2).map(tuple)),
    )
    tasks = [replace(one, id=number) for number, one in enumerate(draw(st.lists(task, max_size=25)))]
    tasks.sort(key=lambda one: (-one.priority, one.id))
    slots = draw(st.integers(1, 6))
    able = [one.id for one in tasks if one.state == "running" and not one.needs]
    running = set(able[: draw(st.integers(0, slots))])
    blocked = {one.id: BROKEN for one in tasks if draw(st.integers(0, 4)) == 0}
    tried = {number for number in blocked if draw(st.booleans())}
    used = {name: draw(st.sampled_from([0, 50, 100, 10**6])) for name in TENANTS}
    return tasks, Situation(NOW, slots, running, blocked, tried, lambda name: tenants[name], used)


@given(worlds())
def test_no_limit_is_ever_passed_and_no_slot_idles(world: tuple[list[QueuedTask], Situation]) -> None:
    tasks, around = world
    by_number, verdicts = {task.id: task for task in tasks}, decide(tasks, around)
    started = starts(verdicts)
    assert len(around.running) + len(started) <= around.slots or not started
    running = Counter(by_number[number].tenant for number in around.running)
    after = running + Counter(by_number[number].tenant for number in started)
    for name in TENANTS:
        quota = around.tenant(name).tasks
        assert not quota or after[name] <= max(quota, running[name])
    for number in started:
        task = by_number[number]
        assert not task.needs and (task.due is None or task.due <= NOW) and number not in around.tried
        assert not around.spent(task.tenant) and task.state != "paused" and number not in around.running
    idle = len(around.running) + len(started) < around.slots
    assert not (idle and any("busy" in reason for reason in waits(verdicts).values()))


@given(worlds())
def test_every_task_that_does_not_run_says_why(world: tuple[list[QueuedTask], Situation]) -> None:
    tasks, around = world
    verdicts = decide(tasks, around)
    for task in tasks:
        verdict = verdicts.get(task.id)
        if task.id in around.running:
            assert (verdict is not None and verdict.act is Act.HOLD) == around.spent(task.tenant)
        elif task.state == "paused":
            assert verdict is None
        else:
            assert verdict is not None and (verdict.act is Act.START or verdict.reason)
            assert verdict.act is not Act.FAIL or any(n.state in ("failed", "cancelled", "") for n in task.needs)


@given(worlds())
def test_while_the_engine_yields_nothing_runs_and_all_say_so(world: tuple[list[QueuedTask], Situation]) -> None:
    tasks, around = world
    verdicts = decide(tasks, replace(around, yielding="the machine is yielded"))
    for task in tasks:
        verdict = verdicts.get(task.id)
        if task.id in around.running:
            assert verdict == Verdict(Act.HOLD, Reason(ReasonCode.YIELDED, "the machine is yielded"))
        elif task.state == "paused":
            assert verdict is None
        elif not task.needs:
            assert verdict == Verdict(Act.WAIT, Reason(ReasonCode.YIELDED, "the machine is yielded"))
        else:
            assert verdict == decide(tasks, around)[task.id], "what it depends on is what it waits for"


@settings(max_examples=examples(5))
@given(st.integers(0, 2**32), st.integers(1, 4))
def test_contended_slots_follow_weights_without_starving(seed: int, slots: int) -> None:
    """Tenants with endless queues: a task runs for some turns, uses tokens, and another takes its place."""
    chance = random.Random(seed)
    weights = {"a": 1.0, "b": 2.0, "c": 4.0}
    tenants = {name: Tenant(weight) for name, weight in weights.items()}
    used: Counter[str] = Counter()
    waiting = {name: number for number, name in enumerate(weights, 1)}
    number, running = len(weights), dict[int, tuple[str, int]]()
    for turn in range(600):
        for task, (name, end) in list(running.items()):
            used[name] += 1
            if turn >= end:
                del running[task]
        tasks = [QueuedTask(task, name, "running") for task, (name, _) in running.items()]
        tasks += [QueuedTask(task, name, "queued") for name, task in waiting.items()]
        verdicts = decide(tasks, situation(slots, tuple(running), tenants=tenants, used=used))
        for task in starts(verdicts):
            name = next(name for name, first in waiting.items() if first == task)
            number += 1
            running[task], waiting[name] = (name, turn + chance.randint(1, 6)), number
    assert sum(used.values()) >= 590 * slots
    shares = {name: used[name] / sum(used.values()) for name in weights}
    if slots == 1:
        assert all(abs(shares[name] - weight / 7) < 0.05 for name, weight in weights.items())
    assert shares["a"] > 0.1


def test_slots_go_to_who_has_fewest_then_to_who_used_least() -> None:
    tasks = queue("a", "a", "a", "b", "b", "c")
    assert starts(decide(tasks, situation(4))) == [1, 4, 6, 2]
    assert starts(decide(tasks, situation(4, used={"a": 5, "c": 1}))) == [4, 6, 1, 5]
    assert starts(decide(tasks, situation(4, tenants={"a": Tenant(weight=3)}))) == [1, 4, 6, 2]
    assert starts(decide(tasks, situation(5, tenants={"a": Tenant(weight=3)}))) == [1, 4, 6, 2, 3]


def test_the_queue_says_how_many_are_ahead() -> None:
    tasks = [QueuedTask(number, "a", "queued") for number in range(1, 400)]
    reasons = waits(decide(tasks, situation(1)))
    assert reasons[2] == "the only slot is busy; it is next"
    assert reasons[3] == "the only slot is busy; 1 task ahead"
    reasons = waits(decide(tasks, situation(8)))
    assert reasons[12] == "8 of 8 slots are busy; 3 tasks ahead"
    assert reasons[30] == "8 of 8 slots are busy; more than 20 tasks ahead"
    assert reasons[399] == "8 of 8 slots are busy; more than 20 tasks ahead"


def test_a_tenants_own_limits_are_named() -> None:
    tasks = queue("bio", "bio", "bio", "bio")
    reasons = waits(decide(tasks, situation(8, tenants={"bio": Tenant(tasks=2)})))
    assert reasons == {
        3: "tenant bio runs 2 of 2 tasks at the same time",
        4: "tenant bio runs 2 of 2 tasks at the same time; 1 of its tasks ahead",
    }
    spent = situation(8, (1,), tenants={"bio": Tenant(tokens_per_day=2_000_000)}, used={"bio": 2_000_001})
    verdicts = decide([replace(tasks[0], state="running"), tasks[1]], spent)
    sentence = "tenant bio has used its 2,000,000 tokens of the day; goes on at 00:00 UTC"
    spent_up = Reason(ReasonCode.QUOTA, sentence)
    assert verdicts == {1: Verdict(Act.HOLD, spent_up), 2: Verdict(Act.WAIT, spent_up)}


@pytest.mark.parametrize(
    ("state", "act", "sentence"),
    [
        ("running", Act.WAIT, "waiting for task 12 (warm-up), which is running, step 30 of 60"),
        ("paused", Act.WAIT, "waiting for task 12 (warm-up), which is paused"),
        ("failed", Act.FAIL, f"It depends on task 12 (warm-up), which failed. {REMEDY}"),
        ("cancelled", Act.FAIL, f"It depends on task 12 (warm-up), which was cancelled. {REMEDY}"),
        ("", Act.FAIL, "It depends on task 12, which does not exist."),
    ],
)
def test_dependencies_are_named(state: str, act: Act, sentence: str) -> None:
    task = QueuedTask(13, "a", "queued", needs=(Needed(12, "warm-up", state, 30, 60),))
    code = ReasonCode.DEPENDS if act is Act.WAIT else ReasonCode.FAILED
    assert decide([task], situation()) == {13: Verdict(act, Reason(code, sentence))}


@pytest.mark.parametrize(("seconds", "shown"), [(0.2, "10 s"), (31, "40 s"), (61, "2 min")])
def test_the_next_try_is_announced(seconds: float, shown: str) -> None:
    task = QueuedTask(1, "a", "queued", due=NOW + seconds, cause="try 2 of 3: it broke")
    assert waits(decide([task], situation()))[1] == f"retrying in {shown}, try 2 of 3: it broke"
    assert starts(decide([task], situation(now=NOW + seconds))) == [1]


def test_a_blocked_task_takes_no_slot_and_is_not_counted() -> None:
    blocked, tasks = {1: BROKEN}, queue("a", "a", "a")
    verdicts = decide(tasks, situation(1, blocked=blocked, tried={1}))
    assert starts(verdicts) == [2]
    assert waits(verdicts) == {1: "it is broken", 3: "the only slot is busy; it is next"}
    assert starts(decide(tasks, situation(1, blocked=blocked))) == [1]
    running = [replace(tasks[1], state="running"), tasks[0], tasks[2]]
    verdicts = decide(running, situation(1, (2,), blocked=blocked))
    assert waits(verdicts) == {1: "it is broken", 3: "the only slot is busy; it is next"}
