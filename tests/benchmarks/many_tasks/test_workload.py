"""Workload files are what their seeds draw, and the tools in them wait the same seconds in every arm."""

from __future__ import annotations

from random import Random
from statistics import fmean

import pytest

from benchmarks import WORKLOADS
from benchmarks.many_tasks import workload, workload_draw
from benchmarks.plugins.tools import FEWEST, latencies, tools
from marlaas.plugins import Episode
from marlaas.plugins.messages import Reply


@pytest.mark.parametrize("name", workload_draw.DRAWN)
def test_the_file_is_what_the_seed_draws(name: str) -> None:
    assert (WORKLOADS / f"{name}.toml").read_text(encoding="utf-8") == workload_draw.text(name)


@pytest.mark.parametrize("name", workload_draw.DRAWN)
def test_a_workload_has_thirty_two_tasks_of_four_tenants(name: str) -> None:
    tasks = workload.load(name).tasks
    assert len({task.name for task in tasks}) == 32
    assert len({task.tenant for task in tasks}) == 4
    assert {task.train.max_staleness for task in tasks} == {2}, "the shipped default"


def test_the_synchronous_arm_differs_in_staleness_alone() -> None:
    whole = workload.load("concurrency")
    synchronous = whole.at_staleness(0)
    assert {task.train.max_staleness for task in synchronous} == {0}
    assert workload.Workload(whole.name, synchronous).at_staleness(2) == whole.tasks


def test_a_part_spreads_over_the_list() -> None:
    whole = workload.load("compute_mix")
    part = whole.part(4, 2)
    assert [task.name for task in part.tasks] == [whole.tasks[number].name for number in (0, 8, 16, 24)]
    assert {task.steps for task in part.tasks} == {2}
    assert part.episodes == sum(2 * task.group_episodes for task in part.tasks)


def test_a_tasks_own_keys_go_before_the_common_ones() -> None:
    common = {"steps": 4, "train": {"seed": 1, "group_size": 8}}
    assert workload.merged(common, {"steps": 5, "train": {"seed": 2}}) == {
        "steps": 5,
        "train": {"seed": 2, "group_size": 8},
    }


def test_tools_take_half_a_second_on_average_with_a_heavy_tail() -> None:
    drawn = latencies(Random(0), 20_000, 0.5, 1.0)
    assert fmean(drawn) == pytest.approx(0.5, rel=0.03)
    assert sum(wait > 3.0 for wait in drawn) / len(drawn) == pytest.approx(0.011, abs=0.003)
    assert latencies(Random(0), 3, 0.0, 1.0) == [0.0] * 3


async def test_an_episode_waits_the_same_whatever_the_policy_says() -> None:
    async def play(said: str) -> tuple[int, float]:
        turns = 0

        async def answer(*_: object) -> Reply:
            nonlocal turns
            turns += 1
            return Reply(said, "stop", turns - 1)

        episode = Episode(answer, split="eval", index=7, seed=3, member=2)
        await tools(episode)
        return turns, float(episode.logged["waited"])

    turns, waited = await play("57")
    assert (turns, waited) == await play("no idea")
    assert FEWEST <= turns <= 6 and waited > 0
