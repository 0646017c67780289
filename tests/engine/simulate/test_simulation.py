"""Whole simulations: the same each time, whole in every row, and with nodes that fail."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from marlaas.engine.simulate.cluster_file import ChanceSpec, read_case
from marlaas.engine.simulate.profile import EngineRates
from marlaas.engine.simulate.simulation import Result, simulate
from tests.oracle.audit import audit

from .made_up import NODES, TASK, TASKS, cluster

FAR = """
[head]
bandwidth = 1e8
[[nodes]]
name = "b"
sampling = 2.0
[nodes.link]
latency = 0.01
bandwidth = 1e7
"""


@pytest.fixture(autouse=True)
def collected() -> Iterator[None]:
    """What a simulation leaves behind is found in its own test."""
    yield
    gc.collect()


def simulated(tmp_path: Path, text: str, name: str = "home", failing: float = 0.05) -> Result:
    return simulate(read_case(cluster(tmp_path, text, failing)), tmp_path / name)


def test_the_same_file_predicts_the_same(tmp_path: Path) -> None:
    first, again = (simulated(tmp_path, NODES + FAR + TASKS, name) for name in ("one", "two"))
    assert first.figures == again.figures and first.head_bytes == again.head_bytes
    assert first.figures.done == first.figures.tasks == 4 and first.figures.steps == 12
    case = read_case(tmp_path / "cluster.toml")
    other = simulate(replace(case, spec=replace(case.spec, seed=1)), tmp_path / "other")
    assert other.figures.makespan != first.figures.makespan


def test_the_checker_finds_nothing_wrong(tmp_path: Path) -> None:
    """All rows and state files, by the code that shares nothing with the engine; with failures of nodes, too."""
    text = NODES + FAR + TASKS + '[[failures]]\nnode = "b"\nat = 4.0\nseconds = 3.0\n'
    result = simulated(tmp_path, text)
    assert result.lost == 1 and result.starts == 1, "workers of the other nodes go on"
    assert result.figures.done == 4 and result.figures.gaps == 0 and result.figures.beyond == 0
    assert max(result.figures.staleness) <= 1
    report = audit(tmp_path / "home", updates=False)
    assert report.problems == [] and report.lost == []
    assert report.proven["every group is consumed once"] and report.proven["spans within the bound"]


def test_a_slow_link_delays_and_breaks_no_bound(tmp_path: Path) -> None:
    """Versions of 18 MB over 1 MB a second take 18 s."""
    near = simulated(tmp_path, NODES + TASKS, "near")
    slow = NODES + "[nodes.link]\nlatency = 0.1\nbandwidth = 1e6\n" + TASKS
    far = simulated(tmp_path, slow, "far")
    assert near.head_bytes == 0 < far.head_bytes
    assert far.figures.makespan > near.figures.makespan + 18 * 3
    assert far.figures.gaps == far.figures.beyond == 0 and max(far.figures.staleness) <= 1


def test_faster_samplers_wait_less(tmp_path: Path) -> None:
    slow = simulated(tmp_path, NODES + "sampling = 0.1\n" + TASKS, "slow", failing=0.0)
    fast = simulated(tmp_path, NODES + "sampling = 10.0\n" + TASKS, "fast", failing=0.0)
    assert fast.figures.reply_wait < slow.figures.reply_wait
    assert fast.figures.idle_of("rollout") > slow.figures.idle_of("rollout")
    assert set(fast.figures.idle) == {"rollout on core 0", "training on core 1"}
    assert sum(fast.figures.shares["rollout"].values()) == pytest.approx(1.0)


def test_what_the_engine_computes_delays_replies(tmp_path: Path) -> None:
    """Members of a group are asked at once, and the loop turns to one after the other."""
    case = read_case(cluster(tmp_path, NODES + TASKS, failing=0.0))
    slow = replace(case, profile=replace(case.profile, engine=EngineRates(turn=0.05)))
    quick, slowed = (simulate(one, tmp_path / name).figures for one, name in ((case, "quick"), (slow, "slow")))
    assert slowed.reply_wait >= quick.reply_wait + 2 * 0.05, "beside its own turn, that of another member at least"
    assert slowed.gaps == slowed.beyond == 0 and slowed.done == 4


@pytest.mark.parametrize(("seconds", "lost"), [(20.0, 0), (60.0, 1)])
def test_a_dark_link_delays_and_a_long_one_loses_the_node(tmp_path: Path, seconds: float, lost: int) -> None:
    """The engine gives a node up that it has not heard of for half a minute."""
    dark = f'[[failures]]\nnode = "b"\nlink = true\nat = 3.0\nseconds = {seconds}\n'
    bright, result = (simulated(tmp_path, NODES + FAR + TASKS + more, f"home {len(more)}") for more in ("", dark))
    assert result.lost == lost
    assert result.figures.done == 4 and result.figures.gaps == result.figures.beyond == 0
    assert max(result.figures.staleness) <= 1 and result.figures.makespan > bright.figures.makespan


def test_nodes_fail_by_chance(tmp_path: Path) -> None:
    """Often, but not five times between two steps of a task, which would pause itself then."""
    case = read_case(cluster(tmp_path, NODES + FAR + TASKS))
    chance = replace(case.spec, chance=ChanceSpec(mean=40.0, seconds=5.0))
    result = simulate(replace(case, spec=chance), tmp_path / "home")
    assert result.lost > 1
    assert result.figures.done == 4 and result.figures.gaps == 0


def test_the_only_node_comes_back(tmp_path: Path) -> None:
    result = simulated(tmp_path, NODES + TASKS + '[[failures]]\nnode = "a"\nat = 2.0\nseconds = 50.0\n')
    assert result.figures.done == 4 and result.figures.makespan > 50


def test_a_simulation_may_end_before_its_tasks(tmp_path: Path) -> None:
    result = simulated(tmp_path, "seconds = 3.0\n" + NODES + TASKS)
    assert result.figures.done < 4 and result.figures.gaps == 0


def test_a_node_that_is_back_meanwhile_is_not_lost_twice(tmp_path: Path) -> None:
    twice = '[[failures]]\nnode = "b"\nat = 3.0\nseconds = 9.0\n[[failures]]\nnode = "b"\nat = 5.0\nseconds = 1.0\n'
    assert simulated(tmp_path, NODES + FAR + TASKS + twice).lost == 1


@pytest.mark.parametrize(("counts", "weights", "wanted"), [((4, 4), (3, 1), 0.75), ((1, 8), (1, 1), 0.5)])
def test_a_busy_sampler_is_shared_by_weight(
    tmp_path: Path, counts: tuple[int, int], weights: tuple[int, int], wanted: float
) -> None:
    """Whoever has more tasks has no more of it; as in the lines themselves, but with all that stands before these."""
    text = "seconds = 60.0\n" + NODES.replace("16", "4") + "sampling = 0.1\n"
    for name, count, weight in zip(("few", "many"), counts, weights, strict=True):
        own = TASK.replace("steps = 3", "steps = 500").replace('tenant = "lab"', f'tenant = "{name}"')
        (tmp_path / f"{name}.toml").write_text(own)
        text += f'[[tasks]]\nfile = "{name}.toml"\ncount = {count}\n[[tenants]]\nname = "{name}"\nweight = {weight}\n'
    shares = simulated(tmp_path, text, failing=0.0).figures.shares["rollout"]
    print(shares)
    assert shares["few"] == pytest.approx(wanted, abs=0.1)  # a task asks for nothing while its last step is made
