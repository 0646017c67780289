"""Whose turn it is: never two passes at a time, and nobody starves."""

import math
from dataclasses import dataclass, field

import pytest
from hypothesis import given, strategies as st

from marlaas.engine.machine.colocated import DeviceTurns, Party


def taken(turns: DeviceTurns, party: Party, now: float, seconds: float = 0.0) -> DeviceTurns:
    """A pass of ``party`` begins at ``now``."""
    return turns.wait(party).begin(party, now).end(now + seconds)


def test_whoever_comes_first_begins_and_goes_on_alone() -> None:
    turns = DeviceTurns(slice=5.0)
    for now in (0.0, 100.0, 200.0):
        turns = taken(turns, "trainer", now)
    assert (turns.holder, turns.since) == ("trainer", 0.0)


def test_nothing_interrupts_a_pass() -> None:
    turns = DeviceTurns(slice=5.0).begin("sampler", 0.0)
    assert turns.delay("trainer", 1000.0) == math.inf
    with pytest.raises(ValueError, match="trainer may not compute"):
        turns.begin("trainer", 1000.0)


def test_the_holder_goes_on_until_its_slice_is_over() -> None:
    turns = taken(DeviceTurns(slice=5.0), "sampler", 0.0).wait("trainer")
    assert (turns.delay("sampler", 4.0), turns.delay("trainer", 4.0)) == (0.0, 1.0)
    assert (turns.delay("sampler", 5.0), turns.delay("trainer", 5.0)) == (math.inf, 0.0)
    turns = taken(turns, "trainer", 5.0)
    assert (turns.holder, turns.since, turns.waiting) == ("trainer", 5.0, frozenset())


def test_who_has_had_less_goes_on_until_it_has_had_as_much() -> None:
    turns = taken(DeviceTurns(slice=0.1).wait("sampler"), "trainer", 0.0, seconds=2.0)
    assert turns.lead == -2.0 and turns.delay("trainer", 2.0) == math.inf
    now, steps = 2.0, 0
    turns = turns.wait("trainer")
    while turns.delay("sampler", now) == 0.0:
        turns = taken(turns, "sampler", now, seconds=0.5)
        now, steps = now + 0.5, steps + 1
    assert (steps, turns.lead, turns.delay("trainer", now)) == (4, 0.0, 0.0)


@dataclass
class Simulation:
    """Both parties always have work; passes take given times."""

    turns: DeviceTurns
    passes: dict[Party, float]
    now: float = 0.0
    computed: dict[Party, float] = field(default_factory=lambda: {"sampler": 0.0, "trainer": 0.0})
    longest_wait: float = 0.0

    def run(self, rounds: int) -> None:
        asked: dict[Party, float] = {"sampler": 0.0, "trainer": 0.0}
        self.turns = self.turns.wait("sampler").wait("trainer")
        for _ in range(rounds):
            party = min(self.passes, key=lambda one: (self.turns.delay(one, self.now), one))
            self.now += self.turns.delay(party, self.now)
            self.turns = self.turns.begin(party, self.now)
            self.longest_wait = max(self.longest_wait, self.now - asked[party])
            self.now += self.passes[party]
            self.computed[party] += self.passes[party]
            self.turns = self.turns.end(self.now).wait(party)
            asked[party] = self.now


@given(st.floats(0.001, 2.0), st.floats(0.001, 2.0), st.floats(0.01, 1.0))
def test_neither_starves(sampling: float, training: float, slice: float) -> None:
    simulation = Simulation(DeviceTurns(slice), {"sampler": sampling, "trainer": training})
    simulation.run(300)
    longest = max(sampling, training)
    assert simulation.longest_wait <= 2 * (slice + longest) + 1e-6
    difference = abs(simulation.computed["sampler"] - simulation.computed["trainer"])
    assert difference <= 2 * (slice + longest)
