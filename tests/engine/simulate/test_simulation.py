"""Whole simulations, with nodes that fail; and records of a home, which predict another mix of tasks."""

from __future__ import annotations

import gc
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from random import Random
from statistics import mean

import pytest

from marlaas.engine.home.paths import Home
from marlaas.engine.simulate.cluster_file import Case, TrainerRates, non_negative, record
from marlaas.engine.simulate.simulation import Figures, Result, simulate
from tests.oracle.audit import audit

from .made_up import NODES, TASK, TASKS, case_of, cluster, profile

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


def simulated(folder: Path, text: str, name: str = "home", failing: float = 0.05) -> Result:
    result = simulate(case_of(cluster(folder, text), profile(failing)), folder / name)
    gc.collect()  # what a simulation leaves behind is found in its own test
    return result


@pytest.fixture(scope="module")
def bright(tmp_path_factory: pytest.TempPathFactory) -> Result:
    """Two nodes, of which none fails."""
    return simulated(tmp_path_factory.mktemp("bright"), NODES + FAR + TASKS)


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> Result:
    """One node, and environments that never fail."""
    return simulated(tmp_path_factory.mktemp("alone"), NODES + TASKS, failing=0.0)


def test_the_same_file_predicts_the_same(bright: Result, tmp_path: Path) -> None:
    again = simulated(tmp_path, NODES + FAR + TASKS)
    assert bright.figures == again.figures and bright.sent == again.sent
    assert bright.figures.done == bright.figures.tasks == 4 and bright.figures.steps == 12


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


def test_a_slow_link_delays_and_breaks_no_bound(alone: Result, tmp_path: Path) -> None:
    """Versions of 18 MB over 3 MB a second take 6 s."""
    far = simulated(tmp_path, NODES + "[nodes.link]\nlatency = 0.1\nbandwidth = 3e6\n" + TASKS, failing=0.0)
    assert alone.sent == 0 < far.sent
    assert far.figures.makespan > alone.figures.makespan + 6 * 3
    assert far.figures.gaps == far.figures.beyond == 0 and max(far.figures.staleness) <= 1


def test_slower_samplers_wait_longer(alone: Result, tmp_path: Path) -> None:
    slow = simulated(tmp_path, NODES + "sampling = 0.1\n" + TASKS, failing=0.0)
    assert alone.figures.reply_wait < slow.figures.reply_wait
    assert alone.figures.idle_of("rollout") > slow.figures.idle_of("rollout")
    assert set(alone.figures.idle) == {"rollout on core 0", "training on core 1"}
    assert sum(alone.figures.shares["rollout"].values()) == pytest.approx(1.0)


def test_the_only_node_comes_back(tmp_path: Path) -> None:
    result = simulated(tmp_path, NODES + TASKS + '[[failures]]\nnode = "a"\nat = 2.0\nseconds = 50.0\n')
    assert result.figures.done == 4 and result.figures.makespan > 50


def test_a_node_that_is_back_meanwhile_is_not_lost_twice(tmp_path: Path) -> None:
    twice = '[[failures]]\nnode = "b"\nat = 3.0\nseconds = 9.0\n[[failures]]\nnode = "b"\nat = 5.0\nseconds = 1.0\n'
    result = simulated(tmp_path, "seconds = 7.0\n" + NODES + FAR + TASKS + twice)
    assert result.lost == 1
    assert result.figures.done < 4 and result.figures.gaps == 0, "a simulation may end before its tasks"


def test_a_busy_sampler_is_shared_by_weight(tmp_path: Path) -> None:
    """Whoever has more tasks has no more of it; as in the lines themselves, but with all that stands before these."""
    text = "seconds = 40.0\n" + NODES.replace("16", "4") + "sampling = 0.1\n"
    for name, count, weight in (("few", 2, 3), ("many", 4, 1)):
        own = TASK.replace("steps = 3", "steps = 500").replace('tenant = "lab"', f'tenant = "{name}"')
        (tmp_path / f"{name}.toml").write_text(own)
        text += f'[[tasks]]\nfile = "{name}.toml"\ncount = {count}\n[[tenants]]\nname = "{name}"\nweight = {weight}\n'
    shares = simulated(tmp_path, text, failing=0.0).figures.shares["rollout"]

    assert shares["few"] == pytest.approx(0.75, abs=0.1)  # a task asks for nothing while its last step is made


ALONE = """
[[nodes]]
name = "a"
"""
FITTED = "seed = 3\n" + ALONE + TASKS.replace("count = 4", "count = 8")
"""Its 24 steps are few: of the seeds 0 to 3, two give replies' tails or tenants' shares that miss the bounds below."""
OTHER = ALONE + TASKS.replace("count = 4", "count = 12") + "every = 0.7\n"


def case_of_four(folder: Path, text: str) -> Case:
    """Groups of four, which have what their three recorded members have in common."""
    path = cluster(folder, text)
    task = folder / "task.toml"
    task.write_text(task.read_text().replace("group_size = 2", "group_size = 4"), encoding="utf-8")
    return case_of(path)


@pytest.fixture(scope="module")
def fitted(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The root of a home that trained the mix to which is fitted."""
    folder = tmp_path_factory.mktemp("fitted")
    assert simulate(case_of_four(folder, FITTED), folder / "home").figures.done == 8
    return folder / "home"


def test_rates_are_found_again(tmp_path: Path) -> None:
    """Within what is left in by rounding to whole passes, and by beats that cut turns in two.

    Two tasks hardly wait for each other: with eight, the trainer's rates of three steps differ by a third from seed
    to seed.
    """
    path = cluster(tmp_path, FITTED.replace("seed = 3\n", "").replace("count = 8", "count = 2"))
    task = tmp_path / "task.toml"
    task.write_text(task.read_text().replace("group_size = 2", "group_size = 4").replace("steps = 3", "steps = 24"))
    assert simulate(case_of(path), tmp_path / "home").figures.done == 2
    found, made = record(Home(tmp_path / "home")), profile()
    assert found.sampler.a_pass == pytest.approx(made.sampler.a_pass, rel=0.1)
    assert usual(found.trainer) == pytest.approx(usual(made.trainer), rel=0.1), "noise of 10 % is drawn for each"
    updates = {round(one, 6) for one in found.trainer.update}  # differences of times, which are sums
    assert updates == set(made.trainer.update)
    assert found.state_bytes == made.state_bytes and not found.cards
    alone = [one for one in found.publish if round(one, 6) in made.publish]
    assert len(alone) > 0.75 * len(found.publish), "few of the fastest waited for a version or for the canary"


def usual(rates: TrainerRates) -> float:
    """Seconds of a call with one group of usual length."""
    return rates.a_pass + rates.group + 200 * rates.token


def test_episodes_are_found_again(fitted: Path) -> None:
    (found,), (made,) = record(Home(fitted)).environments, profile().environments
    lengths = {(turn.given, turn.said) for group in made.groups for episode in group for turn in episode.turns}
    said = {turn.said for group in found.groups for episode in group for turn in episode.turns}
    assert said <= {said for _, said in lengths}
    delays = sorted(turn.delay for group in made.groups for episode in group for turn in episode.turns)
    again = [turn.delay for group in found.groups for episode in group for turn in episode.turns]
    assert all(min(abs(delay - one) for one in delays) < 1e-3 for delay in again), "to a tenth of a millisecond, twice"
    assert all(episode.tail == pytest.approx(0.01, abs=1e-3) for group in found.groups for episode in group)
    assert all(episode.scoring == pytest.approx(0.02, abs=1e-3) for group in found.groups for episode in group)
    assert found.failures.share == pytest.approx(made.failures.share, abs=0.05), "some hundred episodes"
    assert found.held_out


@pytest.mark.slow
def test_another_mix_is_predicted(fitted: Path, tmp_path: Path) -> None:
    """Other tasks, more of them, one after the other: the means of two seeds, within the promised 10 %."""
    case, profile = case_of_four(tmp_path, OTHER), record(Home(fitted))
    true: list[Figures] = []
    predicted: list[Figures] = []
    for seed in (0, 1):
        seeded = replace(case, spec=replace(case.spec, seed=seed))
        true.append(simulate(seeded, tmp_path / f"true-{seed}").figures)
        predicted.append(simulate(replace(seeded, profile=profile), tmp_path / f"predicted-{seed}").figures)

    def means(of: Callable[[Figures], float]) -> tuple[float, float]:
        return mean(map(of, predicted)), mean(map(of, true))

    assert true[0].makespan != true[1].makespan, "another seed is another course"
    ours, theirs = means(lambda figures: figures.makespan)
    assert ours == pytest.approx(theirs, rel=0.1)
    for stage in ("rollout", "training"):
        ours, theirs = means(lambda figures, stage=stage: figures.idle_of(stage))  # type: ignore[misc]
        assert ours == pytest.approx(theirs, abs=0.1)
        ours, theirs = means(lambda figures, stage=stage: figures.shares[stage]["lab-1"])  # type: ignore[misc]
        assert ours == pytest.approx(theirs, abs=0.1)
    ours, theirs = means(lambda figures: figures.reply_wait)
    assert ours == pytest.approx(theirs, rel=0.25), "its tail hangs on how many turns come at once"


def test_what_made_the_numbers_is_found() -> None:
    random = Random(3)
    rows = [(random.uniform(1, 50), random.uniform(1, 400), random.uniform(0, 900)) for _ in range(60)]
    found = non_negative(rows, [0.004 * a + 0.0003 * b + 0.00002 * c for a, b, c in rows])
    assert found == pytest.approx((0.004, 0.0003, 0.00002))


def test_nothing_becomes_faster_by_more_work() -> None:
    assert non_negative([(1.0, 2.0), (2.0, 1.0)], [0.0, 3.0]) == pytest.approx((1.2, 0.0))
    assert non_negative([(1.0,)], [-1.0]) == (0.0,)
    assert non_negative([], []) == ()
