"""One sample a stage, from totals that only grow."""

from __future__ import annotations

from marlaas.engine.daemon.heartbeat import Seen, StageMeter
from marlaas.engine.fairness.line import Ledger
from marlaas.engine.machine.services import Load
from marlaas.engine.store.queries.machine import StageSample

LOADS = {"rollout": Load(3, 8), "training": Load(1, 2)}


def seen(**spent: float) -> list[Seen]:
    return [Seen(name, 1, 0, 0.0, seconds) for name, seconds in spent.items()]


def test_a_sample_is_what_happened_since_the_last() -> None:
    ledger = Ledger()
    meter = StageMeter(ledger)
    for round in (1, 2):
        ledger.rollout(1, 10, 5)
        ledger.rollout_seconds(0.5 * round)
        ledger.passes["rollout"] += 3
        ledger.training(1, 7, 0.25)
        ledger.environment(1, 3.0)
        ledger.environment(2, 1.0)
        spent = {"engine": 0.1, "env sums": 0.2, "env maze": 0.3, "env idle": 0.0, "rollout": 9.0}
        samples = meter.samples(seen(**spent), LOADS, {"rollout": "core 0"}, 100.0, 2.0)
        assert samples == [
            StageSample("rollout", "core 0", 100.0, 2.0, 0.5 * round, 3, 8, 1, tokens=5, read=10, passes=3),
            StageSample("environment", "cpu", 100.0, 2.0, 0.5, 0.0, 2.0, 2),
            StageSample("training", "cpu", 100.0, 2.0, 0.25, 1, 2, 1, tokens=7),
            StageSample("engine", "cpu", 100.0, 2.0, 0.1, 0.0, 0.0, 0),
            StageSample("env sums", "cpu", 100.0, 2.0, 0.2, 0.0, 0.0, 0),
            StageSample("env maze", "cpu", 100.0, 2.0, 0.3, 0.0, 0.0, 0),
        ]


def test_workers_that_are_being_replaced_are_idle() -> None:
    samples = StageMeter(Ledger()).samples(seen(engine=0.1), {}, {}, 0.0, 1.0)
    assert [(sample.stage, sample.busy) for sample in samples] == [
        ("rollout", 0.0),
        ("environment", 0.0),
        ("training", 0.0),
        ("engine", 0.1),
    ]
