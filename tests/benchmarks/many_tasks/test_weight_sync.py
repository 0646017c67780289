"""Other ways to bring weights to the samplers, and what is read off their runs; no engine is started."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from benchmarks.machinery import sync_engine
from benchmarks.machinery.fleet import FleetRun, TaskRun
from benchmarks.machinery.meter import Usage
from benchmarks.machinery.sync_engine import BLOCKING, OVERLAPPED, UNCHECKED
from benchmarks.many_tasks import weight_sync
from benchmarks.many_tasks.weight_sync import Case, Timed
from marlaas.engine.store.rows import StepRow
from marlaas.engine.train.admission import PolicyGroups
from marlaas.engine.train.canary import Canary
from marlaas.engine.train.loop import PolicyLearner
from marlaas.engine.train.publishing import ExposedTime, PublishedVersions

from ...engine.train.serving.test_canary import group
from .test_many_tasks import task


@pytest.fixture(autouse=True)
def as_shipped(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the other ways replace is put back at the end."""
    monkeypatch.setattr(PolicyLearner, "_step", PolicyLearner._step)
    monkeypatch.setattr(Canary, "probe", Canary.probe)
    monkeypatch.setattr(PublishedVersions, "_load_at", PublishedVersions._load_at)


async def test_without_a_canary_nothing_is_compared() -> None:
    closed = group(3)
    assert Canary({}, 1.0).probe([closed])
    sync_engine.take(UNCHECKED, 0.0)
    canary = Canary({}, 1.0)
    assert canary.probe([closed]) is None
    asked = canary.ask({"rollout"})
    assert not asked.chosen and not asked.renewed and asked.trained.done()


async def test_blocking_waits_and_counts_it(monkeypatch: pytest.MonkeyPatch) -> None:
    learner, now = PolicyLearner.__new__(PolicyLearner), [0.0]
    learner.groups = PolicyGroups.__new__(PolicyGroups)
    learner.groups.exposed = ExposedTime(lambda: now[0])

    made: Any = "the version"

    async def make(self: PolicyLearner, *_: Any) -> Any:
        return made

    async def settled(self: PolicyLearner) -> None:
        now[0] = 3.0

    monkeypatch.setattr(PolicyLearner, "_step", make)
    monkeypatch.setattr(PolicyLearner, "settled", settled)
    sync_engine.take(BLOCKING, 0.0)
    nothing: Any = None
    assert await learner._step(0, nothing, nothing) == made
    assert learner.groups.exposed.take()["publish_wait_seconds"] == 3.0


async def test_a_delay_comes_before_a_version_is_loaded(monkeypatch: pytest.MonkeyPatch) -> None:
    order: list[object] = []

    async def load(self: PublishedVersions, endpoint: Any, version: Any) -> None:
        order.append(endpoint)

    async def sleep(seconds: float) -> None:
        order.append(seconds)

    monkeypatch.setattr(PublishedVersions, "_load_at", load)
    sync_engine.take(OVERLAPPED, 0.1)
    monkeypatch.setattr(asyncio, "sleep", sleep)
    endpoint: Any = "rollout"
    version: Any = None
    await PublishedVersions({})._load_at(endpoint, version)
    assert order == [0.1, "rollout"]


def test_a_step_is_timed_after_the_first_ones() -> None:
    one = task("a", 110.0)
    waits = {"publish_wait_seconds": 0.3, "begin_wait_seconds": 0.1}
    first = {"publish_wait_seconds": 9.0, "begin_wait_seconds": 9.0}
    steps = tuple(StepRow(n, 100.0 + 2 * n, 2.0, waits if n > 2 else first) for n in range(1, 6))
    run = FleetRun(100.0, (TaskRun(one.row, steps, one.evals),), Usage(10.0, {}, {}, 0.05))
    found = weight_sync.timed(run, 2)
    assert (found.step, found.publish, found.begin) == pytest.approx((2.0, 0.3, 0.1))
    assert found.exposed == pytest.approx(20.0)


def test_each_way_stands_beside_the_shipped_one() -> None:
    times = {OVERLAPPED: 0.1, BLOCKING: 0.15, UNCHECKED: 0.09}
    found = {case: [Timed(times[case.way] + case.delay, 0.001, 0.0, 0.0)] * 2 for case in weight_sync.cases(False)}
    rows = {(row.what, row.other): row for row in weight_sync.rows(found)}
    beside = rows["a step: the shipped base, torch, staleness 2, 0 ms of delay", BLOCKING]
    assert beside.ratio and beside.ratio.values == pytest.approx((1.5, 1.5))
    assert rows["a step: the shipped base, llama.cpp, staleness 0, 0 ms of delay", UNCHECKED].theirs
    exposed = rows["exposed: the shipped base, torch, staleness 0, 0 ms of delay, overlapped, as shipped", ""]
    assert exposed.ours.middle == pytest.approx(1.0) and exposed.goal == weight_sync.GOAL
    shown = weight_sync.picture(found)
    assert [curve.x for curve in shown.curves] == [(0.0, 10.0, 100.0)] * 3
    assert "without a canary" in weight_sync.remarks(found)


def test_a_quick_run_has_both_ends_of_the_delays() -> None:
    delays = {case.delay for case in weight_sync.cases(True)}
    assert delays == {0.0, 0.1} and {case.sampler for case in weight_sync.cases(True)} == {"torch"}
    assert weight_sync.task(Case("llama.cpp", 2, base="somewhere"), 5).environment == "babble"
