"""Busy cards and trained tokens of the ledger become a move, once; the processor has nothing to move."""

from dataclasses import dataclass, field

from marlaas.engine.daemon.rebalancing import INTERVAL, Rebalancing
from marlaas.engine.devices.machine import Machine
from marlaas.engine.fairness.ledger import Ledger
from marlaas.engine.fleet.placement.asked import Choices, Times
from marlaas.engine.fleet.placement.place import place
from marlaas.engine.fleet.placement_plan import Staffing
from tests.engine.devices.placement.imaginary import ALL, B06, NOTHING, machine, shape

EIGHT = machine(*("A100",) * 8)


def plan(found: Machine, times: Times) -> Staffing:
    return Staffing(place(found, ALL if found.gpus else NOTHING, B06, Choices(), times), (), found)


@dataclass
class Crew:
    staffing: Staffing
    ready: bool = True
    moves: list[str] = field(default_factory=list)

    def move(self, staffing: Staffing) -> None:
        self.moves.append(shape(staffing.placement))
        self.staffing = staffing


def worked(crew: Crew, ledger: Ledger, minutes: int, log: list[str]) -> Rebalancing:
    """Minutes in which the trainer has all to do and every sampler nearly nothing."""
    rebalancing = Rebalancing(crew, ledger, plan, lambda kind, message, level: log.append(message), now=0.0)
    for minute in range(1, minutes + 1):
        for post in crew.staffing.placement.samplers:
            ledger.rollout_seconds(0.05 * INTERVAL, post.name)
        ledger.training(1, 10_000, INTERVAL)
        rebalancing.look(minute * INTERVAL, INTERVAL)
    return rebalancing


def test_a_trainer_that_all_wait_for_gets_cards() -> None:
    crew, log = Crew(plan(EIGHT, Times())), list[str]()
    before = len(crew.staffing.placement.trainer.place.gpus)
    rebalancing = worked(crew, Ledger(), 40, log)
    assert len(crew.staffing.placement.trainer.place.gpus) > before
    assert 1 <= len(crew.moves) <= 2
    assert len(log) == len(crew.moves)
    assert rebalancing.times is not None and rebalancing.times.measured


def test_what_was_before_the_engine_began_counts_for_nothing() -> None:
    ledger = Ledger()
    ledger.training(1, 10**9, 10**6)
    assert Rebalancing(Crew(plan(EIGHT, Times())), ledger, plan, lambda *words: None, now=0.0).times is None


def test_the_processor_has_nothing_to_move() -> None:
    crew, log = Crew(plan(machine(), Times())), list[str]()
    worked(crew, Ledger(), 40, log)
    assert crew.moves == log == []
