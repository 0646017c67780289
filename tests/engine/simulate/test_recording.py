"""Records find what made a home: a simulated one, of which that is known. Then they predict another mix of it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from statistics import mean

import pytest

from marlaas.engine.home.paths import Home
from marlaas.engine.simulate.cluster_file import Case, read_case
from marlaas.engine.simulate.profile import EngineRates, TrainerRates, record
from marlaas.engine.simulate.simulation import Figures, simulate

from .made_up import NODES, TASKS, cluster, profile

ALONE = """
[[nodes]]
name = "a"
"""
FITTED = "seed = 3\n" + ALONE + TASKS.replace("count = 4", "count = 8")
"""Its 24 steps are few: of the seeds 0 to 3, two give replies' tails or tenants' shares that miss the bounds below."""
OTHER = ALONE + TASKS.replace("count = 4", "count = 12") + "every = 0.7\n"


def case_of(folder: Path, text: str) -> Case:
    """Groups of four, which have what their three recorded members have in common."""
    path = cluster(folder, text)
    task = folder / "task.toml"
    task.write_text(task.read_text().replace("group_size = 2", "group_size = 4"), encoding="utf-8")
    return read_case(path)


@pytest.fixture(scope="module")
def fitted(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The root of a home that trained the mix to which is fitted."""
    folder = tmp_path_factory.mktemp("fitted")
    assert simulate(case_of(folder, FITTED), folder / "home").figures.done == 8
    return folder / "home"


def test_rates_are_found_again(tmp_path: Path) -> None:
    """Within what is left in by rounding to whole passes, and by beats that cut turns in two.

    Two tasks hardly wait for each other: with eight, the trainer's rates of three steps differ by a third from seed
    to seed.
    """
    path = cluster(tmp_path, FITTED.replace("seed = 3\n", "").replace("count = 8", "count = 2"))
    task = tmp_path / "task.toml"
    task.write_text(task.read_text().replace("group_size = 2", "group_size = 4").replace("steps = 3", "steps = 24"))
    assert simulate(read_case(path), tmp_path / "home").figures.done == 2
    found, made = record(Home(tmp_path / "home")), profile()
    assert found.sampler.a_pass == pytest.approx(made.sampler.a_pass, rel=0.1)
    assert usual(found.trainer) == pytest.approx(usual(made.trainer), rel=0.1), "noise of 10 % is drawn for each"
    updates = {round(one, 6) for one in found.trainer.update}  # differences of times, which are sums
    assert updates == set(made.trainer.update)
    assert found.state_bytes == made.state_bytes and not found.cards
    alone = [one for one in found.publish if round(one, 6) in made.publish]
    assert len(alone) > 0.9 * len(found.publish), "few of the fastest waited for another version"
    assert not any(asdict(found.engine).values())


def usual(rates: TrainerRates) -> float:
    """Seconds of a call with one group of usual length."""
    return rates.a_pass + rates.group + 200 * rates.token


def test_the_engines_time_is_found_again(tmp_path: Path) -> None:
    """For what it does in a usual second: one is like another, so turns, episodes and calls are hard to tell apart."""
    made = EngineRates(turn=0.002, episode=0.004, call=0.01, beat=0.02)
    path = cluster(tmp_path, FITTED.replace("count = 8", "count = 4"))
    task = tmp_path / "task.toml"
    task.write_text(task.read_text().replace("steps = 3", "steps = 16"), encoding="utf-8")
    case = replace(read_case(path), profile=replace(profile(), engine=made))
    assert simulate(case, tmp_path / "home").figures.done == 4

    def usual(rates: EngineRates) -> float:
        return 30 * rates.turn + 14 * rates.episode + 6 * rates.call + rates.beat

    assert usual(record(Home(tmp_path / "home")).engine) == pytest.approx(usual(made), rel=0.1)


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


def test_another_mix_is_predicted(fitted: Path, tmp_path: Path) -> None:
    """Other tasks, more of them, one after the other: the means of two seeds, within the promised 10 %."""
    case, profile = case_of(tmp_path, OTHER), record(Home(fitted))
    true: list[Figures] = []
    predicted: list[Figures] = []
    for seed in (0, 1):
        seeded = replace(case, spec=replace(case.spec, seed=seed))
        true.append(simulate(seeded, tmp_path / f"true-{seed}").figures)
        predicted.append(simulate(replace(seeded, profile=profile), tmp_path / f"predicted-{seed}").figures)

    def means(of: Callable[[Figures], float]) -> tuple[float, float]:
        return mean(map(of, predicted)), mean(map(of, true))

    ours, theirs = means(lambda figures: figures.makespan)
    assert ours == pytest.approx(theirs, rel=0.1)
    for stage in ("rollout", "training"):
        ours, theirs = means(lambda figures, stage=stage: figures.idle_of(stage))  # type: ignore[misc]
        assert ours == pytest.approx(theirs, abs=0.1)
        ours, theirs = means(lambda figures, stage=stage: figures.shares[stage]["lab-1"])  # type: ignore[misc]
        assert ours == pytest.approx(theirs, abs=0.1)
    ours, theirs = means(lambda figures: figures.reply_wait)
    assert ours == pytest.approx(theirs, rel=0.25), "its tail hangs on how many turns come at once"


def test_a_home_of_several_nodes_is_recorded(tmp_path: Path) -> None:
    simulate(case_of(tmp_path, NODES + TASKS), tmp_path / "home")
    assert record(Home(tmp_path / "home")).names() == ["talk"]
