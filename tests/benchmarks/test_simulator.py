"""The rows that set predictions next to real runs."""

from __future__ import annotations

from collections import Counter

import pytest

from benchmarks.simulator import FITTED, MIXES, MOST, Pair, rows
from marlaas.engine.simulate.simulation import Figures, Result


def pair(predicted: float, measured: float) -> Pair:
    def figures(makespan: float, shares: dict[str, float]) -> Figures:
        idle = {"rollout on core 0": 0.5, "training on core 1": 0.25}
        return Figures(2, 2, 6, 8, 9, makespan, 0.1, 0.2, idle, {"rollout": shares})

    seeds = [figures(predicted + off, {"a": 0.5, "b": 0.3, "c": 0.2}) for off in (-1.0, 1.0)]
    results = tuple(Result(each, 0.0, 1.0, 0, 0.0, 1, 0) for each in seeds)
    return Pair(figures(measured, {"a": 0.5, "b": 0.4, "c": 0.1}), results)


def test_predictions_stand_next_to_what_was_measured() -> None:
    found = list(rows(MIXES[0], [pair(10.0, 11.0), pair(10.0, 9.0)]))
    assert found[0].what == "1 task: makespan" and found[0].ratio is not None
    assert found[0].ratio.values == pytest.approx((1.1, 0.9))
    assert [row.ours.middle for row in found[2:4]] == [50.0, 25.0]
    assert "'b'" in found[4].what and found[4].theirs is not None and found[4].theirs.middle == pytest.approx(40.0)


def test_mixes_have_as_many_tasks_as_their_names() -> None:
    for mix in (*MIXES, FITTED):
        specs = mix.specs("label")
        assert len(specs) == int(mix.name.partition(" ")[0]) <= MOST
        assert len({spec.name for spec in specs}) == len(specs)
    assert len(Counter(spec.tenant for spec in MIXES[-1].specs("label"))) == 4
