"""Histories grow with the run, and are read anew where steps were lost."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import pytest

from marlaas.engine.store.queries.learning import (
    Change,
    History,
    Track,
    group_ages,
    history,
    metric_samples,
    recent_means,
)
from marlaas.engine.store.queries.reader import Reader
from marlaas.engine.store.store import Store
from marlaas.engine.store.versions import NewVersion

from ..test_steps import group


def train(store: Store, policy: int, steps: range, environment: str = "e1", **metrics: float) -> None:
    for step in steps:
        store.experience.add_group(policy, "train", replace(group(step), environment_version=environment), {})
        name = store.versions.unused(f"v{step}")
        version = NewVersion(step, name, "sum", "path", 9)
        store.versions.commit_step(policy, version, [step], 0.5, {"reward": step / 10, "loss": -step} | metrics)


def values(found: History, name: str) -> list[tuple[int, float]]:
    return list(zip(found.tracks[name].steps, found.tracks[name].values, strict=True))


def test_only_later_steps_are_read(store: Store, policy: int, database: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    train(store, policy, range(1, 4))
    with Reader(database) as reader:
        first = history(reader, 1, ["reward"])
        train(store, policy, range(4, 6), "e2")
        read: list[object] = []
        every = Reader.all
        monkeypatch.setattr(Reader, "all", lambda *a: [read.append(row) or row for row in every(*a)])  # type: ignore[func-returns-value]
        second = history(reader, 1, ["reward", "loss"], first)
    assert values(first, "reward") == [(1, 0.1), (2, 0.2), (3, 0.3)] and first.last[0] == 3
    assert [step for step, _ in values(second, "reward")] == [1, 2, 3, 4, 5]
    assert [step for step, _ in values(second, "loss")] == [1, 2, 3, 4, 5], "a metric that was not asked for before"
    assert second.environments == (Change(1, "e1"), Change(4, "e2"))
    assert [second.environment_at(step) for step in (0, 3, 4)] == ["", "e1", "e2"]
    assert len(read) == 1 + 1 + 1 + 2 + 5, "that it stands, the last step, a change, two rewards, five losses"


def test_steps_that_were_made_anew_are_read_anew(store: Store, policy: int, database: Path) -> None:
    train(store, policy, range(1, 6))
    with Reader(database) as reader:
        before = history(reader, 1, ["reward"])
        store.versions.void_after(policy, 2)
        train(store, policy, range(3, 8), "e2", reward=0.9)
        after = history(reader, 1, ["reward"], before)
    assert [value for _, value in values(after, "reward")] == [0.1, 0.2, *[0.9] * 5]
    assert after.environments == (Change(1, "e1"), Change(3, "e2"))


def test_what_is_not_a_number_comes_back_as_such(store: Store, policy: int, database: Path) -> None:
    train(store, policy, range(1, 3), entropy=math.nan, kl=math.inf)
    with Reader(database) as reader:
        found, sampled = history(reader, 1, ["entropy", "kl"]), metric_samples(reader, 1)
    assert all(math.isnan(value) for _, value in values(found, "entropy")) and math.isnan(sampled["entropy"].values[0])
    assert [value for _, value in values(found, "kl")] == [math.inf, math.inf]


def test_a_task_without_steps(store: Store, policy: int, database: Path) -> None:
    with Reader(database) as reader:
        for task in (1, 99):
            assert history(reader, task, ["reward"]) == History({"reward": Track()})
            assert metric_samples(reader, task) == {} and group_ages(reader, task, 0) == {}


def test_samples_are_spread_and_stay(store: Store, policy: int, database: Path) -> None:
    train(store, policy, range(1, 42))
    with Reader(database) as reader:
        found = metric_samples(reader, 1, most=8)
        assert list(found["reward"].steps) == [8, 16, 24, 32, 40, 41] and set(found) == {"reward", "loss"}
        assert list(metric_samples(reader, 1)["loss"].steps) == list(range(1, 42))


def test_groups_are_counted_by_age(store: Store, policy: int, database: Path) -> None:
    train(store, policy, range(1, 3), staleness_0=8.0, staleness_max=0.0)
    train(store, policy, range(3, 5), staleness_0=6.0, staleness_2=2.0, staleness_10=1.0)
    with Reader(database) as reader:
        assert group_ages(reader, 1, 0) == {0: 28, 2: 4, 10: 2} and group_ages(reader, 1, 3) == {0: 6, 2: 2, 10: 1}


def test_the_nearest_step_of_a_track() -> None:
    track = Track()
    assert track.place(3) is None and track.at(3) is None
    track.steps.extend([2, 4, 9])
    track.values.extend([0.2, 0.4, 0.9])
    assert [track.place(step) for step in (-5, 2, 3, 5, 7, 8, 99)] == [0, 0, 0, 1, 2, 2, 2]
    assert track.at(4) == 0.4 and track.at(5) is None


def test_recent_means_are_of_the_last_steps(store: Store, policy: int, database: Path) -> None:
    with Reader(database) as reader:
        assert recent_means(reader, 1) == {}
        train(store, policy, range(1, 21))
        assert recent_means(reader, 1, over=4)["loss"] == pytest.approx(-(17 + 18 + 19 + 20) / 4)
        train(store, policy, range(21, 23), cut=0.5)
        assert recent_means(reader, 1, over=10)["cut"] == 0.5, "of the steps that recorded it"
