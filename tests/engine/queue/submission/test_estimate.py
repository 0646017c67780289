"""Estimates rest on what was measured, and say nothing of time where nothing was."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, strategies as st

from marlaas.engine.models.find import load_base
from marlaas.engine.models.memory import COPIES, FUSED_COPIES, adapter_bytes
from marlaas.engine.queue.submission.estimate import (
    NEAREST,
    disk_of,
    estimate_task,
    measured_episodes,
    nearest,
    time_of,
    together,
)
from marlaas.engine.spec.task import (
    ComponentSpec,
    EvalSpec,
    KeepSpec,
    NamedPolicySpec,
    PolicySpec,
    SamplingSpec,
    TaskSpec,
    TrainSpec,
)
from marlaas.engine.store.queries.learning import PastRun

BASE = load_base("tiny").config
SPEC = TaskSpec("bio", "sums", "arithmetic", steps=10, sampling=SamplingSpec(1.0, 8, 256))
RUN = PastRun(1, 8, 8, 8, steps=60, seconds=120.0, tokens=9000, rollout=0.5, training=1.5,
              trajectory_tokens=20.0, trajectory_text=100.0)  # fmt: skip


def test_time_is_that_of_the_episodes_of_tasks_before() -> None:
    time = time_of(SPEC, [RUN])
    assert time is not None and time.seconds == pytest.approx(10 * 64 * (120 / 60 / 64)) and time.alike
    assert time.rollout == pytest.approx(5.0) and time.training == pytest.approx(15.0)
    assert time.least == time.most == time.seconds and time.runs == 1
    half, twice = replace(SPEC, train=TrainSpec(group_size=4)), replace(SPEC, steps=20)
    for spec, factor in ((half, 0.5), (twice, 2.0)):
        other = time_of(spec, [RUN])
        assert other is not None and other.seconds == pytest.approx(factor * time.seconds)
    assert time_of(SPEC, []) is None


def test_runs_that_are_most_alike_count() -> None:
    others = [replace(RUN, task=n, max_tokens=64, seconds=9e9) for n in range(2, 9)]
    assert nearest(SPEC, [RUN, *others]) == [RUN]
    close, far = replace(RUN, task=2, group_size=6), replace(RUN, task=3, group_size=64)
    assert nearest(SPEC, [far, close, RUN]) == [RUN, close, far]
    assert len(nearest(SPEC, [RUN] * 9)) == NEAREST
    wider = time_of(replace(SPEC, sampling=SamplingSpec(max_tokens=32)), [RUN])
    assert wider is not None and not wider.alike


def test_the_disk_holds_what_retention_keeps() -> None:
    adapter = adapter_bytes(BASE, 16)
    spec = replace(SPEC, eval=EvalSpec(every=5, prompts=16))
    disk = disk_of(spec, [RUN], BASE, token_steps=4)
    assert disk.adapters == 7 * adapter and disk.measured
    held_out = 16 * 3
    assert disk.trajectories == (640 + held_out) * 300 + (4 * 64 + held_out) * 9 * 20
    assert disk_of(spec, [RUN], BASE, token_steps=0).trajectories > disk.trajectories
    sampled = replace(spec, eval=replace(spec.eval, samples=8, temperature=1.0))
    more = 7 * held_out * (300 + 9 * 20)
    assert disk_of(sampled, [RUN], BASE, token_steps=4).trajectories == disk.trajectories + more
    every = replace(spec, keep=KeepSpec(every=2), policy=PolicySpec(rank=32))
    assert disk_of(every, [RUN], BASE, 4).adapters == 2 * adapter * (7 + 5)
    bound = disk_of(spec, [], BASE, token_steps=4)
    assert not bound.measured and bound.trajectories > disk.trajectories, "nothing is known but the limits"


def test_memory_and_tokens() -> None:
    adapter = adapter_bytes(BASE, 16)
    torch = estimate_task(SPEC, [], BASE, 100, torch_sampler=True, context=512)
    llama = estimate_task(SPEC, [], BASE, 100, torch_sampler=False, context=512)
    assert torch.memory - llama.memory == 3 * (FUSED_COPIES - 1) * adapter and llama.memory > (COPIES + 3) * adapter
    assert torch.time is None and torch.most_tokens == 10 * 64 * 256


def test_each_part_of_a_mixture_is_measured() -> None:
    mixed = replace(SPEC, environment="", mixture=(ComponentSpec("a"), ComponentSpec("b"), ComponentSpec("c")))
    assert measured_episodes(mixed) == 3 * measured_episodes(SPEC) > 0


def test_several_policies_share_plays_not_memory() -> None:
    two = {"solver": NamedPolicySpec(groups_per_step=2), "critic": NamedPolicySpec(rank=8)}
    spec = replace(SPEC, policies=two, agents={"a": "solver", "b": "critic"})
    alone, both = (estimate_task(one, [RUN], BASE, 100, False, 512) for one in (SPEC, spec))
    assert both.time == alone.time, "a group that both need is played once"
    assert both.most_tokens == 2 * alone.most_tokens
    assert alone.memory < both.memory < 2 * alone.memory and alone.disk.adapters < both.disk.adapters
    frozen = replace(spec, policies=two | {"critic": NamedPolicySpec(frozen="base")})
    assert estimate_task(frozen, [RUN], BASE, 100, False, 512).memory < both.memory
    pool = replace(spec, policies=two | {"critic": NamedPolicySpec(pool="solver", size=3)})
    adapter = adapter_bytes(BASE, 16)
    kept = [disk_of(one, [RUN], BASE, 4).adapters for one in (frozen, pool)]
    assert kept == [7 * adapter, 10 * adapter]


def test_all_together_take_as_long_as_the_busiest_worker() -> None:
    one = estimate_task(SPEC, [RUN], BASE, 100, True, 512)
    assert one.time is not None and together([one]) == one.time.seconds
    assert together([one, one]) == pytest.approx(30.0), "the trainer's seconds add up"
    unknown = replace(one, time=None)
    assert together([one, unknown]) is None and together([]) is None


@given(st.lists(st.builds(replace, st.just(RUN), seconds=st.floats(0.1, 1e6), group_size=st.integers(1, 64))))
def test_the_middle_lies_between_the_ends(runs: list[PastRun]) -> None:
    time = time_of(SPEC, runs)
    assert (time is None) == (not runs)
    if time is not None:
        assert time.least <= time.seconds <= time.most
