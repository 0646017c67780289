"""What balance within a policy is worth, on virtual time: choices are the engine's, samplers take what passes take.

The figures do not depend on the machine. A batch is cheaper than its conversations one by one, so two samplers are not
twice as fast as one; histories are read anew where a conversation moves.
"""

from __future__ import annotations

from statistics import median

import numpy as np
import pytest

from marlaas.engine.rollout.slots import Replicas

from .queueing import Choose, Machine, Talk, as_engine, staying

MEAN = 8
"""Tokens of a reply, and turns of an episode, on average."""
SEEDS = range(9)


def episodes(seed: int, count: int, given: int) -> list[list[tuple[int, int]]]:
    """Turns of episodes of one group: each is the last one once in eight times."""
    random = np.random.default_rng(seed)
    turns = [min(24, int(random.geometric(1 / MEAN))) for _ in range(count)]
    return [[(given, int(random.integers(1, 2 * MEAN))) for _ in range(one)] for one in turns]


def group(
    choose: Choose, seed: int, *, slots: int = 8, given: int = 12, alone: bool = True, one: bool = False
) -> float:
    """Seconds until a group of 16 has ended, at both samplers or at ``one``.

    Unless it is ``alone``, another policy, which is at the first sampler only, asks for 32 long replies meanwhile.
    """
    machine = Machine(slots, MEAN, choose)
    first, both = Replicas(machine.endpoints[:1]), Replicas(machine.endpoints)
    own = [Talk(turns, first if one else both) for turns in episodes(seed, 16, given)]
    others = [] if alone else [Talk([(20, 64)], first, begins=30.0) for _ in range(32)]
    machine.run(own + others)
    assert not any(place.backlog.seconds for place in machine.endpoints)
    return max(talk.done for talk in own)


def gains(theirs: list[float], ours: list[float]) -> float:
    """How many times as long theirs took, in the middle of all pairs."""
    return median(their / our for their, our in zip(theirs, ours, strict=True))


@pytest.mark.parametrize("slots", [4, 8, 32])
def test_a_group_is_done_sooner_at_both_samplers(slots: int) -> None:
    """By its number, all of it is at one of them."""
    ours, theirs = ([group(as_engine, seed, slots=slots, one=one) for seed in SEEDS] for one in (False, True))
    assert gains(theirs, ours) > 1.3


def test_turns_move_when_another_policy_comes() -> None:
    ours, theirs = ([group(choose, seed, alone=False) for seed in SEEDS] for choose in (as_engine, staying))
    assert gains(theirs, ours) > 1.5


def test_with_long_histories_moving_gains_less_but_loses_nothing() -> None:
    ours, theirs = ([group(choose, seed, alone=False, given=100) for seed in SEEDS] for choose in (as_engine, staying))
    assert 1.05 < gains(theirs, ours) < 1.5


@pytest.mark.parametrize("given", [12, 100])
def test_a_policy_alone_neither_gains_nor_loses_by_moving(given: int) -> None:
    ours, theirs = ([group(choose, seed, given=given) for seed in SEEDS] for choose in (as_engine, staying))
    assert gains(theirs, ours) == pytest.approx(1.0, abs=0.05)


def test_long_prompts_are_read_once() -> None:
    """Each group is at one sampler, and both have half of the groups."""
    machine = Machine(32, 4)
    groups = [Replicas(machine.endpoints) for _ in range(4)]
    talks = [Talk([(2000, 4)], one) for one in groups for _ in range(4)]
    machine.run(talks)
    where = [{talk.here.name for talk in talks if talk.replicas is one and talk.here} for one in groups]
    assert sorted(map(sorted, where)) == [["a"], ["a"], ["b"], ["b"]] and machine.read == 4 * 2000
