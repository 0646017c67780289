"""What the benchmark of environments measures, on few episodes: that it measures at all, and what it says."""

from __future__ import annotations

import pytest

from benchmarks.engine import environments
from benchmarks.engine.environments import (
    among_waiting,
    engine_rate,
    in_a_home,
    quantiles,
    saved_to_serving,
    worker_rate,
)


def test_quantiles_are_taken_in_each_round() -> None:
    rounds = [[float(value) for value in range(100, 0, -1)], [5.0]]
    assert quantiles(rounds, 0.5).values == (51.0, 5.0)
    assert quantiles(rounds, 0.95).values == (96.0, 5.0)


@pytest.mark.processes
def test_each_measurement_ends_and_says_something(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(environments, "WAITING", 5)
    assert len(in_a_home(lambda home: saved_to_serving(home, 2))) == 2
    assert in_a_home(lambda home: worker_rate(home, 70)) > 0
    assert in_a_home(lambda home: engine_rate(home, 128)) > 0
    crowd = in_a_home(lambda home: among_waiting(home, 3))
    assert len(crowd.alone) == len(crowd.crowded) == 3 and crowd.megabytes > 1


@pytest.mark.processes
def test_a_worker_that_fails_is_no_fast_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(environments, "PLUGIN", "def broken(:\n")
    with pytest.raises(RuntimeError, match="SyntaxError"):
        in_a_home(lambda home: worker_rate(home, 10))
