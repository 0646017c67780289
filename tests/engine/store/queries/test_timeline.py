"""What is read of the machine: spans by the clock, totals, standings, what tenants used, which engines there were."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from marlaas.engine.fairness.line import Standing, Usage
from marlaas.engine.store.queries import machine as timeline
from marlaas.engine.store.queries.machine import StageSample, StandingRow, TenantUse
from marlaas.engine.store.queries.reader import Reader
from marlaas.engine.store.rows import WorkerRow, day_of
from marlaas.engine.store.store import Store
from marlaas.engine.store.tasks import today

NOW = 1_000_000.0
SAMPLE = StageSample("rollout", "core 0", NOW, 1.0, 0.5, 3.0, 8.0, 10, 100)


@pytest.fixture
def reader(store: Store, database: Path) -> Iterator[Reader]:
    with Reader(database) as reader:
        yield reader


def test_samples_are_put_together_by_the_clock(store: Store, reader: Reader) -> None:
    assert timeline.newest_samples(reader) == (0.0, 0.0)
    store.telemetry.add_stages(1, [replace(SAMPLE, begun=NOW + n, busy=n / 10, waiting=n, tokens=n) for n in range(5)])
    store.telemetry.add_stages(
        1, [replace(SAMPLE, stage="training", device="core 1"), replace(SAMPLE, stage="something else")]
    )
    assert timeline.newest_samples(reader) == (NOW, NOW + 1)  # of the one that was written last
    first, training, second, third = timeline.stage_spans(reader, NOW, 2)
    assert first == StageSample("rollout", "core 0", NOW, 2.0, 0.1, 0.5, 8.0, 20, 1) and training.stage == "training"
    assert (second.begun, second.busy, third.wall) == (NOW + 2, 0.5, 1.0) and third.share == 0.4
    assert [span.begun for span in timeline.stage_spans(reader, NOW + 4, 2)] == [NOW + 4]


def test_workers_of_the_newest_engine_have_rows_of_their_own(store: Store, reader: Reader) -> None:
    store.telemetry.add_stages(1, [replace(SAMPLE, stage=name) for name in ("env maze", "env gone", "environ")])
    store.telemetry.workers([WorkerRow(name, 1, "running", 0, 0.0, NOW, NOW) for name in ("env maze", "rollout")])
    assert [span.stage for span in timeline.stage_spans(reader, NOW, 60)] == ["env maze"]
    assert timeline.stage_totals(reader, NOW) == {}


def test_totals_join_devices_and_overlapping_samples(store: Store, reader: Reader) -> None:
    second = replace(SAMPLE, device="core 1", waiting=1.0, busy=1.0)
    store.telemetry.add_stages(1, [SAMPLE, second, replace(SAMPLE, begun=NOW - 1)])
    both = StageSample("rollout", "core 1", NOW, 1.0, 0.75, 4.0, 16.0, 20, 200)
    assert timeline.stage_totals(reader, NOW)["rollout"] == both
    store.telemetry.add_stages(1, [replace(SAMPLE, begun=NOW + 1, busy=0.25)])
    later = timeline.stage_totals(reader, NOW)["rollout"]
    assert (later.wall, later.busy, later.waiting, later.ended) == (2.0, 1.0, 3.5, 30)


def test_turns_a_second_are_those_of_all_samplers_lately(store: Store, reader: Reader) -> None:
    assert timeline.turn_rate(reader) is None
    store.telemetry.add_stages(1, [replace(SAMPLE, begun=NOW + second, ended=1000) for second in range(-5, 0)])
    store.telemetry.add_stages(1, [replace(SAMPLE, begun=NOW + second, ended=10) for second in range(10)])
    store.telemetry.add_stages(
        1, [replace(SAMPLE, begun=NOW + second, ended=30, device="core 1") for second in range(10)]
    )
    store.telemetry.add_stages(1, [replace(SAMPLE, stage="training", begun=NOW + 9, ended=500)])
    assert timeline.turn_rate(reader) == pytest.approx(40.0), "ten seconds of two samplers; older ones do not count"
    assert timeline.turn_rate(reader, over=1.0) == pytest.approx(40.0)


def test_the_newest_standings_alone_are_known(store: Store, reader: Reader) -> None:
    store.telemetry.standings({"rollout": [Standing("bio", 3, 0.0), Standing("", 1, 0.0)], "training": []})
    store.telemetry.standings({"rollout": [Standing("lab", 2, 7.5)], "training": [Standing("bio", 0, 1.0)]})
    known = [StandingRow("training", "bio", 0, 1.0), StandingRow("rollout", "lab", 2, 7.5)]
    assert timeline.standings(reader) == known
    written = reader.changed()
    store.telemetry.standings({"rollout": [Standing("lab", 2, 7.5)], "training": [Standing("bio", 0, 1.0)]})
    assert reader.changed() == written


def test_tenants_by_what_they_used_and_weigh(store: Store, reader: Reader) -> None:
    assert timeline.seconds_used(reader, today()) == []
    store.tenants.add_use([Usage(1, "rollout", 10, 2.0), Usage(1, "training", 5, 1.0), Usage(1, "environment", 0, 9.0)])
    store.tenants.set("lab", weight=3.0)
    assert timeline.seconds_used(reader, today()) == [TenantUse("lab", 3.0, 2.0, 1.0)]
    assert timeline.seconds_used(reader, day_of(0.0)) == []
    store.tasks.set_state(1, "running")
    assert timeline.seconds_used(reader, day_of(0.0)) == [TenantUse("lab", 3.0, 0.0, 0.0)]


def test_engines_come_newest_first_with_their_sampler(store: Store, reader: Reader) -> None:
    store.telemetry.begin_incarnation("tiny", "f", "torch")
    engines = timeline.engine_starts(reader, 5)
    assert [engine.incarnation for engine in engines] == [2, 1] and engines[0].sampler == "torch"
    assert len(timeline.engine_starts(reader, 1)) == 1 and timeline.steps_since(reader, 0.0) == 0
