"""Which task is sampled where follows from what was measured; what must repeat itself never moves."""

from __future__ import annotations

import pytest

from marlaas.engine.devices.routing import TokenCosts
from marlaas.engine.fairness.mixes import Mix
from marlaas.engine.orchestrator.endings import Fruitless
from marlaas.engine.orchestrator.router import AGAIN, Router, under_way
from marlaas.engine.spec import TaskSpec, TrainSpec

from ..rollout.fake import FakeSampler
from ..rollout.stations import station

READER, WRITER = TokenCosts("rollout", 1.0, 9.0), TokenCosts("rollout-2", 3.0, 3.0)
MOVING = TaskSpec("lab", "moving", "sums")
SETTLED = TaskSpec("lab", "settled", "sums", train=TrainSpec(deterministic=True, max_staleness=0))


class Desk:
    """A router over two stations of different kinds, with a clock of its own."""

    def __init__(self, *kinds: str, repeatable: bool = True) -> None:
        self.stations = [station(FakeSampler(), 4, 64, name) for name in ("rollout", "rollout-2")[: len(kinds)]]
        for one, kind in zip(self.stations, kinds, strict=True):
            one.kind, one.repeatable = kind, repeatable  # type: ignore[assignment]
        self.mixes: dict[int, Mix] = {}
        self.costs = [READER, WRITER]
        self.now = 0.0
        self.router = Router(self.stations, lambda: self.costs, self.mixes, lambda: self.now)

    def homes(self, task: int) -> list[str]:
        return [share.sampler for share in self.router.shares(task)]

    def played(self, task: int, prefilled: int, sampled: int) -> None:
        """An episode has ended; the router looks again."""
        mix = self.mixes.setdefault(task, Mix())
        mix.turn(prefilled, sampled)
        mix.episode()
        self.now += AGAIN


def test_readers_and_writers_part_once_their_turns_were_measured() -> None:
    desk = Desk("torch", "llama.cpp")
    for task in (1, 2):
        desk.router.join(task, MOVING)
    first = {task: desk.homes(task) for task in (1, 2)}
    assert all(homes for homes in first.values())
    desk.played(1, 500, 5)
    desk.played(2, 5, 250)
    routes = desk.homes(1), desk.homes(2)
    assert [homes[0] for homes in routes] == ["rollout", "rollout-2"]
    desk.played(1, 500, 5)
    assert (desk.homes(1), desk.homes(2)) == routes, "nothing moves without a reason"


def test_measured_costs_move_a_task() -> None:
    desk = Desk("torch", "llama.cpp")
    for task in (1, 2):
        desk.router.join(task, MOVING)
        desk.played(task, 500, 5) if task == 1 else desk.played(task, 5, 250)
    desk.costs = [TokenCosts("rollout", 3.0, 1.0), TokenCosts("rollout-2", 1.0, 3.0)]
    before = desk.homes(1)[0]
    desk.now += AGAIN
    assert (before, desk.homes(1)[0], desk.homes(2)[0]) == ("rollout-2", "rollout-2", "rollout")
    desk.costs = [READER, WRITER]
    desk.now += AGAIN
    assert (desk.homes(1)[0], desk.homes(2)[0]) == ("rollout", "rollout-2")


def test_a_task_that_has_left_is_not_reckoned_with() -> None:
    desk = Desk("torch", "llama.cpp")
    for task in (1, 2):
        desk.router.join(task, MOVING)
        desk.played(task, 100, 100)
    desk.router.leave(1)
    desk.router.leave(1)
    desk.now += AGAIN
    assert len(desk.router.shares(2)) == 2, "alone, it has both"


def test_what_must_repeat_itself_is_always_at_the_first_that_can_however_busy() -> None:
    desk = Desk("torch", "llama.cpp")
    desk.stations[0].repeatable = False
    for task in range(3):
        desk.router.join(task, MOVING)
        desk.played(task, 1, 900)
    assert desk.router.join(9, SETTLED) == "llama.cpp" and desk.router.join(3, MOVING) == ""
    for _ in range(3):
        desk.played(9, 900, 1)
        assert desk.homes(9) == ["rollout-2"]


def test_after_a_restart_it_is_at_the_same_kind_or_nowhere() -> None:
    desk = Desk("torch", "llama.cpp")
    assert desk.router.join(1, SETTLED) == "torch"
    assert desk.router.join(2, SETTLED, "llama.cpp") == "llama.cpp" and desk.homes(2) == ["rollout-2"]
    with pytest.raises(Fruitless, match=r"was sampled with llama\.cpp so far, which this home does not have"):
        Desk("torch").router.join(1, SETTLED, "llama.cpp")
    with pytest.raises(Fruitless):
        Desk("torch", repeatable=False).router.join(1, SETTLED, "torch")


def test_one_station_has_everything() -> None:
    desk = Desk("torch")
    desk.router.join(1, MOVING)
    (share,) = desk.router.shares(1)
    assert (share.sampler, share.part) == ("rollout", 1.0)


def test_a_task_keeps_so_much_under_way_as_its_staleness_allows() -> None:
    train = MOVING.train
    assert under_way(MOVING) == min(256, 3 * train.groups_per_step * train.group_size)


def test_a_mix_forgets_what_was_long_ago_but_not_its_size() -> None:
    mix = Mix()
    assert mix.of_one is None
    for _ in range(600):
        mix.turn(100, 10)
        mix.episode()
    assert mix.of_one == pytest.approx((100, 10)) and mix.episodes < 600
    for _ in range(2000):
        mix.turn(100, 50)
        mix.episode()
    assert mix.of_one is not None and 40 < mix.of_one[1] < 50
