"""Busy cards and trained tokens of the ledger become a move, once; the processor has nothing to move."""

from dataclasses import dataclass, field

from marlaas.engine.daemon.planning import INTERVAL, Rebalancing
from marlaas.engine.devices.machine import Machine
from marlaas.engine.fairness.line import Ledger
from marlaas.engine.fleet.placement.choices import Choices, Times
from marlaas.engine.fleet.placement_plan import PlacementPlan
from tests.engine.fleet.placement.imaginary import ALL, B06, NOTHING, machine, place, shape

EIGHT = machine(*("A100",) * 8)


def plan(found: Machine, times: Times) -> PlacementPlan:
    return PlacementPlan(place(found, ALL if found.gpus else NOTHING, B06, Choices(), times), (), found)


@dataclass
class WorkerSupervisor:
    placement_plan: PlacementPlan
    ready: bool = True
    moves: list[str] = field(default_factory=list)

    def move(self, placement_plan: PlacementPlan) -> None:
        self.moves.append(shape(placement_plan.placement))
        self.placement_plan = placement_plan


def worked(supervisor: WorkerSupervisor, ledger: Ledger, minutes: int, log: list[str]) -> Rebalancing:
    """Minutes in which the trainer has all to do and every sampler nearly nothing."""
    rebalancing = Rebalancing(supervisor, ledger, plan, lambda kind, message, level: log.append(message), now=0.0)
    for minute in range(1, minutes + 1):
        for assignment in supervisor.placement_plan.placement.samplers:
            ledger.rollout_seconds(0.05 * INTERVAL, assignment.name)
        ledger.training(1, 10_000, INTERVAL)
        rebalancing.look(minute * INTERVAL, INTERVAL)
    return rebalancing


def test_a_trainer_that_all_wait_for_gets_cards() -> None:
    supervisor, log = WorkerSupervisor(plan(EIGHT, Times())), list[str]()
    before = len(supervisor.placement_plan.placement.trainer.place.gpus)
    rebalancing = worked(supervisor, Ledger(), 40, log)
    assert len(supervisor.placement_plan.placement.trainer.place.gpus) > before
    assert 1 <= len(supervisor.moves) <= 2
    assert len(log) == len(supervisor.moves)
    assert rebalancing.times is not None and rebalancing.times.measured


def test_what_was_before_the_engine_began_counts_for_nothing() -> None:
    ledger = Ledger()
    ledger.training(1, 10**9, 10**6)
    assert Rebalancing(WorkerSupervisor(plan(EIGHT, Times())), ledger, plan, lambda *words: None, now=0.0).times is None


def test_the_processor_has_nothing_to_move() -> None:
    supervisor, log = WorkerSupervisor(plan(machine(), Times())), list[str]()
    worked(supervisor, Ledger(), 40, log)
    assert supervisor.moves == log == []
