"""One sample a stage, from totals that only grow."""

from __future__ import annotations

import os

import pytest

from marlaas.engine.daemon.stage_meter import StageMeter
from marlaas.engine.fairness.ledger import Ledger
from marlaas.engine.orchestrator.services import Queue
from marlaas.engine.store.stages import StageSample

QUEUES = {"rollout": Queue(3, 8), "training": Queue(1, 2)}


def test_a_sample_is_what_happened_since_the_last() -> None:
    ledger = Ledger()
    meter = StageMeter(ledger)
    for round in (1, 2):
        ledger.rollout(1, 10, 5)
        ledger.rollout_seconds(0.5 * round)
        ledger.training(1, 5, 0.25)
        ledger.environment(1, 3.0)
        ledger.environment(2, 1.0)
        spent = {"engine": 0.1, "env sums": 0.2, "env maze": 0.3, "rollout": 9.0}
        samples = meter.samples(spent, QUEUES, {"rollout": "core 0"}, 100.0, 2.0)
        assert samples == [
            StageSample("rollout", "core 0", 100.0, 2.0, 0.5 * round, 3, 8, 1),
            StageSample("training", "cpu", 100.0, 2.0, 0.25, 1, 2, 1),
            StageSample("environment", "cpu", 100.0, 2.0, 0.5, 0.0, 2.0, 2),
            StageSample("engine", "cpu", 100.0, 2.0, 0.1, 0.0, 0.0, 0),
        ]


def test_without_workers_environments_and_engine_are_measured_all_the_same() -> None:
    samples = StageMeter(Ledger()).samples({"engine": 0.1}, {}, {}, 0.0, 1.0)
    assert [(sample.stage, sample.busy) for sample in samples] == [("environment", 0), ("engine", 0.1)]


def test_processor_time_is_what_was_spent_since_the_last_question() -> None:
    meter, me = StageMeter(Ledger()), os.getpid()
    first = meter.processor_seconds([("engine", me), ("gone", 2**22 + 1)])
    assert first["engine"] > 0 and "gone" not in first
    while (again := meter.processor_seconds([("engine", me)])["engine"]) == 0:
        sum(range(100_000))
    assert again == pytest.approx(0.01, abs=0.05)
