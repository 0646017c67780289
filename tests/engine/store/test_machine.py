"""Samples of the stages: kept by the second, put together by age, forgotten after a month."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from marlaas.engine.store.queries.machine import StageSample
from marlaas.engine.store.store import Store
from marlaas.engine.store.telemetry import DAY, HOUR, KEPT

from ..by_hand import rows

NOW = 1_000.0 * DAY
SAMPLE = StageSample("rollout", "core 0", NOW, 1.0, 0.5, 3.0, 8.0, 10)


def kept(database: Path) -> list[StageSample]:
    columns = "stage, device, begun, wall, busy, waiting, active, ended"
    return [StageSample(**row) for row in rows(database, f"SELECT {columns} FROM stages ORDER BY begun")]


def test_what_is_young_stays_as_it_was(store: Store, database: Path) -> None:
    young = [replace(SAMPLE, begun=NOW - age) for age in range(HOUR - 1, 0, -1)]
    store.telemetry.add_stages(1, young)
    store.telemetry.thin_stages(NOW)
    assert kept(database) == young


@pytest.mark.parametrize(("age", "span"), [(HOUR, 60), (DAY, 3600)])
def test_what_is_older_is_put_together_and_sums_stay(store: Store, database: Path, age: int, span: int) -> None:
    begun = NOW - age - span
    seconds = [replace(SAMPLE, begun=begun + n, wall=1.0, busy=n / 100, waiting=float(n), ended=n) for n in range(60)]
    store.telemetry.add_stages(1, seconds)
    for _ in range(2):
        store.telemetry.thin_stages(NOW)
        (row,) = kept(database)
        assert (row.begun, row.wall, row.ended) == (begun, 60.0, sum(range(60)))
        assert row.busy == pytest.approx(sum(range(60)) / 100) and row.waiting == pytest.approx(29.5)


def test_other_stages_devices_and_engines_stay_apart(store: Store, database: Path) -> None:
    old = [replace(SAMPLE, begun=NOW - 2 * HOUR, stage=s, device=d) for s in ("rollout", "training") for d in "ab"]
    for incarnation in (1, 2):
        store.telemetry.add_stages(incarnation, old)
    store.telemetry.thin_stages(NOW)
    assert len(kept(database)) == 8


def test_a_month_is_kept_in_few_rows(store: Store, database: Path) -> None:
    for age in range(0, 2 * KEPT, 600):
        store.telemetry.add_stages(1, [replace(SAMPLE, begun=NOW - age, wall=600.0)])
    store.telemetry.thin_stages(NOW)
    left = kept(database)
    assert min(row.begun for row in left) >= NOW - KEPT
    assert sum(row.wall for row in left) == KEPT + 600
    assert len(left) < KEPT / HOUR + 24 * 60
