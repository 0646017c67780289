"""The learner with producers and recovery, whatever the delays: nothing is lost, doubled or stale."""

from __future__ import annotations

import asyncio
import contextlib
import json
import sqlite3
from collections import Counter
from dataclasses import replace
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import given, settings, strategies as st

from marlaas.engine.environments.protocol import EpisodeOutcome, EpisodeSpec
from marlaas.engine.queue.scheduler.scheduler import Ending
from marlaas.engine.samplers.protocol import SampleRequest, SampleResult
from marlaas.engine.samplers.sampling import WHOLE, Truncation
from marlaas.engine.spec.task import EvalSpec, NamedPolicySpec, PolicySpec, SamplingSpec, TaskSpec, TrainSpec
from marlaas.engine.train import admission
from marlaas.engine.trainer.protocol import GroupStats, Probe, TrainGroup
from marlaas.plugins.messages import Answer
from tests.oracle.audit import audit

from ...examples import examples
from ..queue.scheduler.fake_environments import FakeEnvironments
from ..queue.scheduler.world import World
from ..rollout.fake import FakeSampler

SPEC = TaskSpec(
    "lab",
    "sums",
    "sums",
    steps=5,
    policy=PolicySpec(rank=1),
    train=TrainSpec(groups_per_step=2, group_size=2, max_staleness=1),
    sampling=SamplingSpec(max_tokens=3, max_episode_tokens=9),
    eval=EvalSpec(every=2, prompts=3),
)


def check_history(world: World) -> None:
    """Every group trained on once, by the step that it belongs to, within the bound on staleness; no step missing.

    In order of arrival, by any step, each of which has as many.
    """
    train = world.spec.train
    groups = world.query("SELECT * FROM groups WHERE split = 'train' AND state = 'consumed' ORDER BY number")
    assert [g["number"] for g in groups] == list(range(world.spec.steps * train.groups_per_step))
    for group in groups:
        assert train.order == "arrival" or group["step"] == group["number"] // train.groups_per_step + 1
        assert 0 <= group["step"] - 1 - group["version"] <= train.max_staleness
    sizes = Counter(group["step"] for group in groups)
    assert sizes == dict.fromkeys(range(1, world.spec.steps + 1), train.groups_per_step)
    assert [s["number"] for s in world.query("SELECT number FROM steps ORDER BY number")] == list(
        range(1, world.spec.steps + 1)
    )
    spans = world.query(
        "SELECT t.spans, g.version FROM trajectories t JOIN groups g ON g.id = t.\"group\" WHERE g.split = 'train'"
    )
    assert all(span[2] == row["version"] for row in spans for span in json.loads(row["spans"]))


@settings(max_examples=examples(4))
@given(
    seed=st.integers(0, 10**6),
    most=st.integers(0, 6),
    staleness=st.integers(0, 2),
    losses=st.lists(st.tuples(st.integers(1, 400), st.sampled_from(("workers", "engine", "sampler"))), max_size=4),
    samplers=st.integers(1, 3),
    order=st.sampled_from(("number", "arrival")),
)
def test_nothing_is_lost_doubled_or_stale(
    seed: int, most: int, staleness: int, losses: list[tuple[int, str]], samplers: int, order: str
) -> None:
    async def play(root: Path) -> None:
        train = replace(SPEC.train, max_staleness=max(staleness, order == "arrival"), order=order)
        spec = replace(SPEC, train=train)
        world = World(root, spec, seed, most, samplers=samplers)
        run = asyncio.ensure_future(world.go())
        for turns, victim in losses:
            for _ in range(turns):
                await asyncio.sleep(0)
            if victim == "workers":
                world.kill_workers()
                continue
            if victim == "sampler":
                await world.lose_sampler(turns)
                continue
            run.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await run
            world.restart()
            run = asyncio.ensure_future(world.go())
        assert await asyncio.wait_for(run, 50) == Ending("done")
        check_history(world)
        for sampler in world.workers.samplers.values():
            assert all(version.retired for version in sampler.versions.values()), "a sampler keeps what nobody asks for"
        world.store.close()

    with TemporaryDirectory() as folder:
        asyncio.run(play(Path(folder)))


def audited(root: Path) -> list[str]:
    """What an audit finds, but for the headers of the fake trainer's files."""
    return [problem for problem in audit(root, updates=False).problems if "its header says" not in problem]


class Tailed(FakeEnvironments):
    """One instance in five takes as long as ``LONG`` episodes of the others, however fast the machine is."""

    LONG = 40
    quick_ended = 0

    async def play(self, lease: Any, spec: EpisodeSpec, answer: Answer, counts: bool = False) -> EpisodeOutcome:
        slow, begun, idle = spec.split == "train" and spec.index % 5 == 0, self.quick_ended, 0
        while slow and self.quick_ended < begun + self.LONG and idle < 2000:  # idle: all wait for slow ones
            before = self.quick_ended
            await asyncio.sleep(0)
            idle = idle + 1 if self.quick_ended == before else 0
        outcome = await super().play(lease, spec, answer, counts)
        self.quick_ended += not slow and spec.split == "train"
        return outcome


@pytest.mark.parametrize("policies", [2])
async def test_in_order_of_arrival_no_step_waits_for_the_slowest(tmp_path: Path, policies: int) -> None:
    """Slow groups are given up as they grow too old, are counted, and are trained on in the end; an audit agrees."""
    train = replace(SPEC.train, groups_per_step=4, max_staleness=2, order="arrival", patience=1000)
    spec = replace(SPEC, steps=10, train=train, eval=EvalSpec(every=0, prompts=3))
    if policies == 2:
        both = dict.fromkeys(("solver", "critic"), NamedPolicySpec(rank=1))
        spec = replace(spec, policies=both, agents={name: name for name in both})
    world = World(tmp_path, spec, samplers=2)
    world.environments = Tailed(world.chance, agents=tuple(spec.agents) or ("agent",))
    run = asyncio.ensure_future(world.go())
    while not world.query("SELECT 1 FROM steps WHERE number = 3"):
        await asyncio.sleep(0)
    run.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await run
    world.restart()
    assert await asyncio.wait_for(world.go(), 50) == Ending("done")
    for policy in world.query("SELECT id FROM policies"):
        rows = world.query(f"SELECT number, step FROM groups WHERE state = 'consumed' AND policy = {policy['id']}")
        assert sorted(row["number"] for row in rows) == list(range(40))
        slow = [row["step"] for row in rows if row["number"] % 5 == 0]
        assert sum(slow) / len(slow) > 7, f"in the order of numbers it is 5: {slow}"
        assert Counter(row["step"] for row in rows) == dict.fromkeys(range(1, 11), 4)
    given_up = world.query("SELECT value FROM metrics WHERE name = 'given_up'")
    assert len(given_up) == 10 * policies and sum(row["value"] for row in given_up) > 0
    assert not world.query("SELECT 1 FROM open_plays")
    assert not audited(tmp_path)
    with contextlib.closing(sqlite3.connect(world.home.database)) as database, database:
        database.execute("UPDATE groups SET step = 10 WHERE step = 1 AND number % 2 = 0")
    found = " ".join(audited(tmp_path))
    assert "of 10 steps of 4 groups" in found and "tokens of version 0 in step 10" in found


async def test_a_task_that_moves_is_checked_at_every_sampler(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(tmp_path, replace(SPEC, steps=12), samplers=3)
    scored: list[tuple[str, str]] = []
    for name, sampler in world.workers.samplers.items():
        monkeypatch.setattr(sampler, "score", partial(noted, scored, name, sampler.score))
    assert await asyncio.wait_for(world.go(), 50) == Ending("done")
    served = {(name, e.version) for name, one in world.workers.samplers.items() for e in one.ledger}
    trained = {(name, version) for name, version in served if "-v0-" not in version and "-v12-" not in version}
    assert trained <= set(scored) and len({name for name, _ in served}) > 1


async def noted(scored: list[tuple[str, str]], name: str, score: Any, version: str, *rest: Any) -> Any:
    scored.append((name, version))
    return await score(version, *rest)


async def test_a_deterministic_task_stays_at_one_sampler(tmp_path: Path) -> None:
    train = replace(SPEC.train, deterministic=True, max_staleness=0)
    world = World(tmp_path, replace(SPEC, train=train), samplers=2)
    run = asyncio.ensure_future(world.go())
    while not world.query("SELECT 1 FROM steps WHERE number = 2"):
        await asyncio.sleep(0)
    run.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await run
    assert world.query("SELECT sampler FROM policies") == [{"sampler": "torch"}]
    used = [bool(sampler.ledger) for sampler in world.workers.samplers.values()]
    world.restart()
    assert await asyncio.wait_for(world.go(), 50) == Ending("done")
    assert used == [bool(sampler.ledger) for sampler in world.workers.samplers.values()] == [True, False]
    check_history(world)


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path, SPEC)


async def test_thinking_where_the_base_has_none_fails_the_task(tmp_path: Path) -> None:
    world = World(tmp_path / "home", replace(SPEC, sampling=replace(SPEC.sampling, thinking=True)))
    ending = await world.go()
    assert ending.state == "failed" and "knows no thinking" in ending.reason.words
    assert not world.query("SELECT * FROM groups")


async def test_a_step_is_made_but_not_committed_before_publishing(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    sampler, trainer, published = world.workers.sampler, world.workers.trainer, asyncio.Event()
    load, now = sampler.load, [0.0]
    monkeypatch.setattr(admission, "monotonic", lambda: now[0])

    async def slow(version: str, path: str) -> str:
        if "-v1-" in version:
            await published.wait()
        return await load(version, path)

    monkeypatch.setattr(sampler, "load", slow)
    run = asyncio.ensure_future(world.go())
    while trainer.steps.get("task-1/policy", 0) < 2:
        await asyncio.sleep(0)
    for _ in range(100):
        await asyncio.sleep(0)
    assert trainer.steps == {"task-1/policy": 2}
    assert [row["number"] for row in world.query("SELECT number FROM steps")] == [1]
    now[0] = 7.0
    published.set()
    assert await asyncio.wait_for(run, 50) == Ending("done")
    check_history(world)
    waited = world.query("SELECT step, value FROM metrics WHERE name = 'publish_wait_seconds' AND value > 0")
    assert [(row["step"], row["value"]) for row in waited] == [(2, 7.0)]


@pytest.mark.parametrize("deterministic", [False, True])
async def test_the_canary_rides_with_each_step(
    world: World, monkeypatch: pytest.MonkeyPatch, deterministic: bool
) -> None:
    world.spec = replace(SPEC, train=replace(SPEC.train, deterministic=deterministic))
    calls, accumulate = list[tuple[bool, bool]](), world.workers.trainer.accumulate

    async def noting(
        policy: str, groups: tuple[TrainGroup, ...], probe: Probe | None = None, path: str = ""
    ) -> GroupStats:
        calls.append((bool(path), probe is not None))
        return await accumulate(policy, groups, probe, path)

    monkeypatch.setattr(world.workers.trainer, "accumulate", noting)
    assert await asyncio.wait_for(world.go(), 50) == Ending("done")
    assert all(steps == probed for steps, probed in calls) and sum(steps for steps, _ in calls) == SPEC.steps
    compared = world.query("SELECT step FROM metrics WHERE name = 'gap_max' ORDER BY step")
    assert [row["step"] for row in compared] == list(range(1, SPEC.steps + 1))


async def test_evaluations_alone_leave_tokens_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[float, Truncation]] = []
    generate = FakeSampler.generate

    async def noting(sampler: FakeSampler, request: SampleRequest, **heard: Any) -> SampleResult:
        asked.append((request.temperature, request.truncation))
        return await generate(sampler, request, **heard)

    monkeypatch.setattr(FakeSampler, "generate", noting)
    measure = EvalSpec(every=2, prompts=3, temperature=0.5, top_p=0.9, top_k=4, min_p=0.1)
    world = World(tmp_path, replace(SPEC, eval=measure))
    assert await asyncio.wait_for(world.go(), 50) == Ending("done")
    assert set(asked) == {(1.0, WHOLE), (0.5, Truncation(4, 0.9, 0.1))}
