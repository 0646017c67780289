"""What the benchmark of two policies compares: arms that differ in nothing but how slots and samplers are divided."""

from __future__ import annotations

from benchmarks.sampler.agents import (
    APART,
    BY_HAND,
    IN_HALVES,
    JUDGE,
    ONE,
    OURS,
    POLICIES,
    SKEW,
    SLOTS,
    TWO,
    WRITER,
    remarks,
    rows,
    spec_of,
)
from benchmarks.sampler.agents_stage import Outcome
from marlaas.engine.fleet.routing.assignment import Share
from marlaas.engine.spec.agents import agent_map_of


def outcome(seconds: float) -> Outcome:
    routes = {WRITER: (Share("rollout", 0.55), Share("rollout-2", 0.45)), JUDGE: (Share("rollout-2", 1.0),)}
    return Outcome(dict.fromkeys(POLICIES, seconds), dict.fromkeys(POLICIES, seconds / 10), routes)


def test_every_way_to_divide_uses_all_that_there_is() -> None:
    assert all(sum(part.slots for part in (ONE[arm].kept or {}).values()) == SLOTS for arm in (BY_HAND, IN_HALVES))
    assert {part.sampler for part in (TWO[APART].kept or {}).values()} == {"rollout", "rollout-2"}
    assert ONE[OURS].kept is TWO[OURS].kept is None
    by_hand = ONE[BY_HAND].kept or {}
    nearest = min(range(1, SLOTS), key=lambda slots: abs(slots / (SLOTS - slots) - SKEW))
    assert by_hand[WRITER].slots == nearest


def test_the_task_trains_both() -> None:
    assert agent_map_of(spec_of(8)).trained == POLICIES


def test_ratios_are_of_the_same_repetition() -> None:
    one = {OURS: [outcome(1.0), outcome(2.0)], BY_HAND: [outcome(1.0), outcome(2.0)], IN_HALVES: [outcome(2.0)] * 2}
    two = {OURS: [outcome(1.0)], APART: [outcome(1.5)]}
    found = {(row.what, row.other): row.ratio for row in rows(one, two)}
    assert len(found) == 6
    halves = found["one sampler: a step of the judge", IN_HALVES]
    assert halves is not None and halves.values == (2.0, 1.0)
    assert "writer: 55% rollout, 45% rollout-2; judge: 100% rollout-2" in remarks(one, two)
