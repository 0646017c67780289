"""What the benchmark of two policies compares: arms that differ in nothing but how slots and samplers are divided."""

from __future__ import annotations

from benchmarks.sampler import agents_ablation
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
from benchmarks.sampler.agents_stage import Outcome, Scene
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


def ablated(seconds: float) -> Outcome:
    last = dict.fromkeys(POLICIES, 9 * seconds)
    return Outcome({WRITER: seconds, JUDGE: seconds / 2}, {}, {}, 0.5, 0.25, last)


def test_the_ablation_compares_a_step_of_the_slower_policy() -> None:
    full = agents_ablation.FULL
    cases = {
        case.words: {arm: [ablated(2.0 if arm == full else 3.0)] for arm in agents_ablation.ALL}
        for case in agents_ablation.CASES
    }
    held = {
        name: {arm: [ablated(1.0 if arm == full else 2.0)] for arm in arms}
        for name, (*_, arms) in agents_ablation.HELD.items()
    }
    exact = {arm: {WRITER: "a", JUDGE: "b"} for arm in agents_ablation.ARMS}
    found = agents_ablation.Ablated(cases, held, exact)
    ratios = {(row.what, row.other): row.ratio.values for row in agents_ablation.rows(found) if row.ratio is not None}
    assert set(ratios.values()) == {(1.5,), (2.0,)} and len(ratios) == 5 + 5 + 2 + 4
    assert ratios["10:1: a step", agents_ablation.ONE_BY_ONE] == (1.5,)
    said = agents_ablation.remarks(found)
    assert "10:1, full: sampler 50%, trainer 25%" in said and "bit for bit the same" in said
    exact["without pipeline"] = {WRITER: "a", JUDGE: "c"}
    assert "others in without pipeline" in agents_ablation.remarks(found)


def test_arms_leave_out_what_they_say() -> None:
    kept = {arm: bool(scene.kept) for arm, scene in agents_ablation.ARMS.items()}
    assert [arm for arm in kept if kept[arm]] == ["without balance", "without balance and pipeline"]
    assert all(("pipeline" in arm) is scene.without.pipeline for arm, scene in agents_ablation.ARMS.items())
    assert agents_ablation.ARMS[agents_ablation.FULL] == Scene()
    assert agents_ablation.exact_spec().train.deterministic


def test_tasks_one_after_another_add_up() -> None:
    both = agents_ablation.together([ablated(1.0), ablated(3.0)])
    assert agents_ablation.slower(both) == 4.0 and (both.sampling, both.training) == (0.5, 0.25)
