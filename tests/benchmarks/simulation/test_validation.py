"""The rows that set predictions beside real runs, and the sizes of the large scale."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from benchmarks.simulation import over_nodes, scale, validation
from benchmarks.simulation.validation import MIXES, Pair, rows, worst_tenant
from marlaas.engine.simulate.cluster_file import FOREVER
from marlaas.engine.simulate.figures import Figures
from marlaas.engine.simulate.processor import ProcessorTime
from marlaas.engine.simulate.simulation import Result


def pair(predicted: float, measured: float) -> Pair:
    def figures(makespan: float, shares: dict[str, float]) -> Figures:
        idle = {"rollout on core 0": 0.5, "training on core 1": 0.25}
        return Figures(2, 2, 6, 8, 9, makespan, 0.1, 0.2, idle, {"rollout": shares})

    seeds = [figures(predicted + off, {"a": 0.5, "b": 0.3, "c": 0.2}) for off in (-1.0, 1.0)]
    results = tuple(Result(one, ProcessorTime(), 1.0, 0, 0.0, 1, 0) for one in seeds)
    return Pair(figures(measured, {"a": 0.5, "b": 0.4, "c": 0.1}), results)


def test_predictions_stand_beside_what_was_measured() -> None:
    found = list(rows(MIXES[0], [pair(10.0, 11.0), pair(10.0, 9.0)]))
    assert found[0].what == "1 task: makespan" and found[0].ratio is not None
    assert found[0].ratio.values == pytest.approx((1.1, 0.9))
    assert [row.ours.middle for row in found[2:4]] == [50.0, 25.0]
    assert "'b'" in found[4].what and found[4].theirs is not None and found[4].theirs.middle == 40.0


def test_the_tenant_is_the_one_that_is_predicted_worst() -> None:
    assert worst_tenant([pair(1.0, 1.0)]) == "b"


def test_mixes_have_as_many_tasks_as_they_say() -> None:
    for mix in (*MIXES, validation.FITTED, *over_nodes.MIXES, over_nodes.FITTED):
        specs = mix.specs("label")
        assert len(specs) == int(mix.name.partition(" ")[0]) <= validation.MOST
        assert len({spec.name for spec in specs}) == len(specs)
    assert len(Counter(spec.tenant for spec in MIXES[-1].specs("label"))) == 4


def test_a_small_cluster_runs_for_some_seconds(tmp_path: Path) -> None:
    result = scale.simulated(1, 3.0)
    assert result.simulated == pytest.approx(10.0 + 3.0 + 1.0)
    assert result.figures.tasks == scale.TASKS_A_NODE and not result.figures.reasons
    assert result.figures.gaps == result.figures.beyond == 0 and result.head_bytes > 0


def test_short_tasks_are_simulated_to_their_end() -> None:
    ended = scale.simulated(1, FOREVER, [scale.short(number) for number in range(12)])
    rows = list(scale.rows_to_the_end({(1, 12): ended}))
    assert len(rows) == 2 and all(row.ours.middle > 0 for row in rows) and ended.figures.steps == 12 * scale.SHORT
    with pytest.raises(RuntimeError, match="Of 13 tasks 12 ended"):
        list(scale.rows_to_the_end({(1, 13): ended}))
