"""What the arms of the routing benchmark differ in: where turns go, and nothing else."""

from __future__ import annotations

import numpy as np

from benchmarks.machinery.workers import Run
from benchmarks.report.figures import Section
from benchmarks.sampler import affinity
from benchmarks.sampler.affinity import ALONE, LEAST, NUMBER, READERS, ROUTED, STAYING, WRITERS, Measured, chains, mix
from benchmarks.sampler.other_ways import by_number, staying
from marlaas.engine.rollout.slots import Replicas
from marlaas.engine.spec.agents import AgentMap
from marlaas.engine.train.publishing import PublishedVersions
from marlaas.engine.train.selfplay import Match, Opponents, Participants
from tests.engine.rollout.endpoints import endpoint
from tests.engine.rollout.fake import FakeSampler


def pair() -> Replicas:
    return Replicas([endpoint(FakeSampler(), 4, 64, name) for name in ("a", "b")])


def test_by_number_each_group_is_at_one_sampler() -> None:
    both = pair()

    def usual(self: Participants, match: Match) -> dict[str, Replicas]:
        return {"policy": both}

    participants = Participants(AgentMap({}, {}), dict[str, PublishedVersions](), Opponents())
    before, Participants.replicas = Participants.replicas, usual  # type: ignore[method-assign]
    try:
        with by_number():
            went = [participants.replicas(Match({}, {}))["policy"].endpoints for _ in range(16)]
        assert participants.replicas(Match({}, {}))["policy"] is both
    finally:
        Participants.replicas = before  # type: ignore[method-assign]
    assert all(len(one) == 1 for one in went) and 7 <= [one[0].name for one in went].count("a") <= 9


def test_who_stays_is_where_the_first_turn_was() -> None:
    both, tokens = pair(), np.arange(8, dtype=np.int32)
    first, second = both.endpoints
    with first.backlog.turn(1000, 0):
        assert both.choose(tokens, 1, first, 6)[0] is second
        with staying():
            assert both.choose(tokens, 1, first, 6) == (first, 2) and both.choose(tokens, 1)[0] is second


def test_the_tasks_are_as_the_method_says() -> None:
    specs = mix(6)
    assert [spec.steps for spec in specs] == [6] * READERS + [12] * WRITERS
    assert {spec.train.max_staleness for spec in specs} == {1} and [spec.environment for spec in chains(3)] == [
        "chains",
        "babble",
    ]


def test_rows_pair_ours_with_every_other_way() -> None:
    run = Run(2.0, (1.0, 1.0, 2.0, 2.0), (3, 4), 100)
    mixed = {name: [run] for name in (ROUTED, affinity.EVEN, "torch on both cores")}
    alone = {shape: {LEAST: [run], NUMBER: [run]} for shape in ALONE}
    measured = Measured(mixed, alone, {LEAST: [run], STAYING: [run]}, "one that reads: torch")
    rows = affinity.rows(measured)
    assert len(rows) == 2 * 3 + len(ALONE) + 1
    assert len({(row.what, row.other) for row in rows}) == len(rows), "the headline finds a row by its name"
    section = Section("routing", "", "", rows, affinity.remarks(measured))
    assert "3 and 4 turns at the two samplers, 100 tokens read" in section.remarks


def test_numbers_are_counted_apart_for_each_task() -> None:
    """As groups are numbered; else one task's groups would decide where another's go."""
    both = pair()
    usual = Participants.replicas
    Participants.replicas = lambda self, match: {"policy": both}  # type: ignore[method-assign]
    try:
        with by_number():
            tasks = [Participants(AgentMap({}, {}), {}, Opponents()) for _ in range(2)]
            went = [[task.replicas(Match({}, {}))["policy"].endpoints[0].name for _ in range(6)] for task in tasks]
    finally:
        Participants.replicas = usual  # type: ignore[method-assign]
    assert went[0] == went[1]
