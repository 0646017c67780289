"""Which task is sampled where follows from what was measured; what must repeat itself never moves."""

from __future__ import annotations

import asyncio
from collections import Counter
from dataclasses import replace

import pytest

from marlaas.engine.errors import Fruitless, WorkerDied
from marlaas.engine.fairness.line import Mix
from marlaas.engine.machine.routing import router as module
from marlaas.engine.machine.routing.assignment import Share, TokenCosts, route
from marlaas.engine.machine.routing.router import AGAIN, MANY, Router, under_way
from marlaas.engine.spec.task import ONLY, EvalSpec, NamedPolicySpec, SamplingSpec, TaskSpec, TrainSpec

from ...rollout.endpoints import endpoint
from ...rollout.fake import FakeSampler

READER, WRITER = TokenCosts("rollout", 1.0, 9.0), TokenCosts("rollout-2", 3.0, 3.0)
LIMITS = SamplingSpec(max_tokens=32, max_episode_tokens=256)
MOVING = TaskSpec("lab", "moving", "sums", sampling=LIMITS)
DEBATE = TaskSpec(
    "lab",
    "debate",
    "debate",
    policies={
        "solver": NamedPolicySpec(groups_per_step=2),
        "critic": NamedPolicySpec(),
        "judge": NamedPolicySpec(frozen="base"),
        "before": NamedPolicySpec(pool="solver"),
    },
    agents={"solver": "solver", "critic": "critic", "judge": "judge", "rival": "before"},
    sampling=LIMITS,
    eval=EvalSpec(agents={"judge": "solver@0"}),
)
SETTLED = TaskSpec("lab", "settled", "sums", sampling=LIMITS, train=TrainSpec(deterministic=True, max_staleness=0))


class Routing:
    """A router over two endpoints of different kinds, with a clock of its own."""

    def __init__(self, *kinds: str, repeatable: bool = True) -> None:
        self.endpoints = [endpoint(FakeSampler(), 4, 64, name) for name in ("rollout", "rollout-2")[: len(kinds)]]
        for one, kind in zip(self.endpoints, kinds, strict=True):
            one.kind, one.repeatable = kind, repeatable  # type: ignore[assignment]
        self.mixes: dict[int, dict[str, Mix]] = {}
        self.costs = [READER, WRITER]
        self.now = 0.0
        self.told: list[str] = []
        self.router = Router(
            self.endpoints,
            lambda: self.costs,
            self.mixes,
            lambda: self.now,
            lambda task, sentence: self.told.append(f"{task}: {sentence}"),
        )

    def samplers(self, task: int, policy: str = ONLY) -> list[str]:
        return [share.sampler for share in self.router.shares(task, policy)]

    def played(self, task: int, prefilled: int, sampled: int) -> None:
        """An episode has ended; the router looks again."""
        self.heard(task, **{ONLY: (prefilled, sampled)})

    def heard(self, task: int, **tokens: tuple[int, int]) -> None:
        """The same, with what each policy read and said in it."""
        mixes = self.mixes.setdefault(task, {})
        for policy, (prefilled, sampled) in tokens.items():
            mixes.setdefault(policy, Mix()).turn(prefilled, sampled)
        for mix in mixes.values():
            mix.episode()
        self.now += AGAIN


def test_readers_and_writers_part_once_measured() -> None:
    routing = Routing("torch", "llama.cpp")
    for task in (1, 2):
        routing.router.join(task, MOVING)
    first = {task: routing.samplers(task) for task in (1, 2)}
    assert all(samplers for samplers in first.values())
    routing.played(1, 500, 5)
    routing.played(2, 5, 250)
    routes = routing.samplers(1), routing.samplers(2)
    assert [samplers[0] for samplers in routes] == ["rollout", "rollout-2"]
    routing.played(1, 500, 5)
    assert (routing.samplers(1), routing.samplers(2)) == routes, "nothing moves without a reason"


def test_the_next_of_many_tasks_joins_without_a_look(monkeypatch: pytest.MonkeyPatch) -> None:
    """A look takes time in proportion to all tasks: one at each start would take the square of their number."""
    routing, looks = Routing("torch", "llama.cpp"), []

    def counted(*known: object) -> dict[str, tuple[Share, ...]]:
        looks.append(known)
        return route(*known)  # type: ignore[arg-type]

    monkeypatch.setattr(module, "route", counted)
    routing.costs = [READER, replace(READER, name="rollout-2")]
    for task in range(3 * MANY):
        routing.router.join(task, MOVING)
        assert routing.samplers(task)
    assert len(looks) == MANY - 1, "each of the few has all looked at"
    at = Counter(sampler for task in range(MANY, 3 * MANY) for sampler in routing.samplers(task))
    assert at["rollout"] == at["rollout-2"] == MANY, "they go where there is the most room"
    routing.played(0, 500, 5)
    assert routing.samplers(3 * MANY - 1) and len(looks) == MANY, "the next look is for all"


def test_measured_costs_move_a_task() -> None:
    routing = Routing("torch", "llama.cpp")
    for task in (1, 2):
        routing.router.join(task, MOVING)
        routing.played(task, 500, 5) if task == 1 else routing.played(task, 5, 250)
    routing.costs = [TokenCosts("rollout", 3.0, 1.0), TokenCosts("rollout-2", 1.0, 3.0)]
    before = routing.samplers(1)[0]
    routing.now += AGAIN
    assert (before, routing.samplers(1)[0], routing.samplers(2)[0]) == ("rollout-2", "rollout-2", "rollout")
    routing.costs = [READER, WRITER]
    routing.now += AGAIN
    assert (routing.samplers(1)[0], routing.samplers(2)[0]) == ("rollout", "rollout-2")


def test_a_task_that_has_left_is_not_reckoned_with() -> None:
    routing = Routing("torch", "llama.cpp")
    for task in (1, 2):
        routing.router.join(task, MOVING)
        routing.played(task, 100, 100)
    routing.router.leave(1)
    routing.router.leave(1)
    routing.now += AGAIN
    assert len(routing.samplers(2)) == 2, "alone, it has both"


async def test_a_dead_sampler_gets_nothing_until_it_has_a_successor() -> None:
    routing = Routing("torch", "llama.cpp")
    for task in (1, 2):
        routing.router.join(task, MOVING)
        routing.played(task, 500, 5) if task == 1 else routing.played(task, 5, 250)
    assert (routing.samplers(1)[0], routing.samplers(2)[0]) == ("rollout", "rollout-2")
    routing.endpoints[1].lost = True
    assert routing.samplers(1) == routing.samplers(2) == ["rollout"], "at once"
    routing.router.join(9, SETTLED, "llama.cpp")
    waiting = asyncio.ensure_future(routing.router.served(9))
    await asyncio.sleep(0)
    assert not waiting.done(), "there is no other with its bits"
    with pytest.raises(WorkerDied):
        routing.samplers(9)
    routing.endpoints[0].lost = True
    with pytest.raises(WorkerDied, match="No sampler lives"):
        routing.samplers(1)
    successor = endpoint(FakeSampler(), 4, 64, "rollout-2")
    successor.kind = "llama.cpp"
    routing.router.take_in(successor)
    await waiting
    await routing.router.served(1)
    assert routing.samplers(9) == routing.samplers(1) == ["rollout-2"]


async def test_an_only_sampler_that_is_dead_serves_nobody() -> None:
    routing = Routing("torch")
    routing.router.join(1, MOVING)
    await routing.router.served(1)
    routing.endpoints[0].lost = True
    with pytest.raises(WorkerDied):
        routing.router.shares(1, ONLY)


def test_a_deterministic_task_is_at_the_first_that_can() -> None:
    routing = Routing("torch", "llama.cpp")
    routing.endpoints[0].repeatable = False
    for task in range(3):
        routing.router.join(task, MOVING)
        routing.played(task, 1, 900)
    assert routing.router.join(9, SETTLED) == "llama.cpp" and routing.router.join(3, MOVING) == ""
    for _ in range(3):
        routing.played(9, 900, 1)
        assert routing.samplers(9) == ["rollout-2"]


def test_after_a_restart_it_is_at_the_same_kind_or_nowhere() -> None:
    routing = Routing("torch", "llama.cpp")
    assert routing.router.join(1, SETTLED) == "torch"
    assert routing.router.join(2, SETTLED, "llama.cpp") == "llama.cpp" and routing.samplers(2) == ["rollout-2"]
    with pytest.raises(Fruitless, match=r"was sampled with llama\.cpp so far, which this home does not have"):
        Routing("torch").router.join(1, SETTLED, "llama.cpp")
    with pytest.raises(Fruitless):
        Routing("torch", repeatable=False).router.join(1, SETTLED, "torch")


def test_policies_of_one_task_go_where_their_own_turns_belong() -> None:
    routing = Routing("torch", "llama.cpp")
    routing.router.join(1, DEBATE)
    routing.heard(1, solver=(5, 400), critic=(500, 5), judge=(300, 5))
    assert [routing.samplers(1, policy)[0] for policy in ("solver", "critic", "judge")] == [
        "rollout-2",
        "rollout",
        "rollout",
    ]
    assert routing.samplers(1, "solver@0") == routing.samplers(1, "solver"), "who only takes part in measurements"


def test_capacity_follows_the_policy_that_is_asked_more() -> None:
    routing = Routing("torch", "torch")
    routing.costs = [TokenCosts(name, 1.0, 2.0) for name in ("rollout", "rollout-2")]
    routing.router.join(1, DEBATE)
    routing.heard(1, solver=(10, 10), critic=(10, 10), judge=(10, 10))
    for _ in range(2000):
        routing.heard(1, solver=(200, 200), critic=(10, 10), judge=(10, 10))
    assert len(routing.samplers(1, "solver")) == 2 and {
        len(routing.samplers(1, who)) for who in ("critic", "judge")
    } == {1}
    assert [share.part for share in routing.router.shares(1, "solver")] == pytest.approx([0.55, 0.45], rel=0.01)


def test_a_pool_counts_for_the_policy_of_its_versions() -> None:
    demands = []
    for policies in ({"solver": (30, 30)}, {"solver": (10, 10), "before": (20, 20)}):
        routing = Routing("torch", "torch")
        routing.router.join(1, DEBATE)
        routing.heard(1, **policies)
        demands.append([replace(demand, turns=0.0) for demand in routing.router.demands()])
    assert demands[0] == demands[1] and [demand.task for demand in demands[0]] == ["1/solver", "1/critic", "1/judge"]
    assert [demand.sampled for demand in demands[0]] == [30 * min(256, 3 * 2 * DEBATE.train.group_size), 0.0, 0.0]


def test_one_station_has_everything() -> None:
    routing = Routing("torch")
    routing.router.join(1, MOVING)
    (share,) = routing.router.shares(1, ONLY)
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


def test_it_tells_which_samplers_a_policy_has() -> None:
    routing = Routing("llama.cpp", "torch")
    routing.router.join(1, MOVING)
    assert routing.samplers(1) == routing.samplers(1)
    assert routing.told == ["1: The task is sampled by llama.cpp (rollout) and torch (rollout-2)."], "once"
    routing.router.join(2, SETTLED)
    routing.samplers(2)
    assert routing.told[1:] == ["2: The task is sampled by llama.cpp (rollout)."]
    routing.router.leave(2)
    routing.router.join(3, DEBATE)
    routing.samplers(3, "critic")
    assert routing.told[-1].startswith("3: The policy critic is sampled by ")
    told = len(routing.told)
    routing.router.join(2, SETTLED)
    routing.samplers(2)
    assert len(routing.told) == told + 1, "who begins anew is told again"


def test_where_there_is_one_sampler_nothing_is_told() -> None:
    routing = Routing("torch")
    routing.router.join(1, MOVING)
    assert routing.samplers(1) == ["rollout"] and not routing.told
