"""What the stop-watch counts, and how start-up moments are read from a store; nothing is measured here."""

from __future__ import annotations

from pathlib import Path
from time import perf_counter

import pytest

from benchmarks.engine import costs, startup
from benchmarks.engine.probe import GROUP, TURN, Watch
from marlaas.engine.store.queries.reader import Reader
from marlaas.engine.store.store import Store
from marlaas.engine.store.submissions import submit
from marlaas.engine.store.versions import NewVersion
from marlaas.engine.submission.demo import tasks
from marlaas.engine.training.inputs import TrainGroup


def test_a_wait_ends_when_the_frame_is_written() -> None:
    watch = Watch()
    watch.act(TURN, perf_counter() - 1.0)
    watch.act(TURN, 0.0)  # nobody knows what made it possible
    assert not watch.waits
    watch.written()
    watch.written()
    assert watch.waits[TURN] == [pytest.approx(1000, abs=500)]


def test_a_group_waits_for_no_one_but_the_trainer() -> None:
    watch = Watch()
    watch.complete = {3: 10.0, 4: 12.0}
    groups = [TrainGroup(number, ()) for number in (3, 4)]
    assert watch.trained(groups) == 10.0
    watch.answered("accumulate", 11.0)
    watch.answered("generate", 99.0)
    assert watch.trained(groups) == 11.0


def test_versions_count_once_training_has_begun() -> None:
    watch = Watch()
    watch.answered("load", 1.0)
    assert watch.published == 0.0
    watch.answered("step", 2.0)
    watch.answered("load", 3.0)
    assert (watch.stepped, watch.published) == (2.0, 3.0)


def test_waiting_times_are_told_by_kind() -> None:
    assert f"| {GROUP} | 2.00 | 2.90 | 3 |" in costs.remarks({GROUP: [1.0, 2.0, 3.0]})


def test_the_moments_of_a_start_are_the_stores_own(tmp_path: Path) -> None:
    store = Store(tmp_path / "marlaas.db", "tiny")
    (task, *_) = submit(tmp_path / "marlaas.db", tasks())
    policy = store.versions.policy(task, "policy", {})
    store.versions.commit_first(policy, NewVersion(0, "v0", "sum", "v0", 1))
    with Reader(tmp_path / "marlaas.db") as reader:
        assert set(startup.events(reader)) == {"engine", "version"}
        store.telemetry.event("engine", "it serves")
        store.versions.commit_step(policy, NewVersion(1, "v1", "sum", "v1", 1), [], 0.1, {})
        found = startup.events(reader)
    store.close()
    assert list(found) == ["engine", "workers", "version", startup.STEP]
    assert found["engine"] <= found["version"] <= found[startup.STEP]
