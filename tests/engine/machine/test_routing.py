"""Tasks are sampled where their tokens cost least; nobody moves without need, and what must repeat never does."""

from __future__ import annotations

import asyncio
import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from itertools import product

import numpy as np
import pytest
from hypothesis import example, given, strategies as st

from marlaas.engine.devices.machine import Cpu, Gpu, Link, Machine, Place, Rates, SamplerAssignment, SamplerKind
from marlaas.engine.errors import Fruitless, WorkerDied
from marlaas.engine.fairness.line import Ledger, Mix
from marlaas.engine.machine.placement.capacity import CORE
from marlaas.engine.machine.routing.assignment import (
    CELLS,
    LEAST_PART,
    CostMeter,
    Demand,
    Routes,
    Share,
    TokenCosts,
    busy_seconds,
    guess,
    mean_of,
    route,
)
from marlaas.engine.machine.routing.router import AGAIN, Router, SamplerEndpoints, behind, device_of, rates_at, repeats
from marlaas.engine.models.find import load_base
from marlaas.engine.rollout.slots import Replicas
from marlaas.engine.samplers.protocol import SamplerStats
from marlaas.engine.spec.task import ONLY, EvalSpec, NamedPolicySpec, SamplingSpec, TaskSpec, TrainSpec
from tests.engine.machine.placement.imaginary import LAPTOP, SERVER, machine, plain
from tests.engine.rollout.endpoints import endpoint
from tests.engine.rollout.fake import FakeSampler

READER = TokenCosts("reader", prefilled=1.0, sampled=40.0)
WRITER = TokenCosts("writer", prefilled=4.0, sampled=10.0)
costs = st.floats(0.01, 100.0)
crews = st.lists(st.tuples(costs, costs), min_size=1, max_size=3).map(
    lambda rates: [TokenCosts(f"s{number}", *rate) for number, rate in enumerate(rates)]
)
works = st.lists(st.tuples(st.floats(0.0, 100.0), st.floats(0.1, 100.0)), min_size=1, max_size=4).map(
    lambda tokens: [Demand(f"t{number}", *pair) for number, pair in enumerate(tokens)]
)


def busiest(samplers: list[TokenCosts], demands: list[Demand], routes: Routes) -> float:
    return max(busy_seconds(samplers, demands, routes).values())


def best_whole(samplers: list[TokenCosts], demands: list[Demand]) -> float:
    """By trying everything, each task at one sampler."""
    names = [sampler.name for sampler in samplers]
    return min(
        busiest(
            samplers, demands, {demand.task: (Share(name, 1.0),) for demand, name in zip(demands, chosen, strict=True)}
        )
        for chosen in product(names, repeat=len(demands))
    )


def most_at(routes: Routes) -> dict[str, str]:
    return {task: shares[0].sampler for task, shares in routes.items()}


def test_equal_tasks_on_equal_samplers_are_spread_whole() -> None:
    samplers = [TokenCosts(f"gpu {number}", 1.0, 5.0) for number in range(4)]
    routes = route(samplers, [Demand(f"t{number}", 100, 20) for number in range(8)])
    assert Counter(most_at(routes).values()) == {f"gpu {number}": 2 for number in range(4)}
    assert all(len(shares) == 1 for shares in routes.values())


def test_tasks_stay_where_they_may_be_served() -> None:
    demands = [Demand("repeatable", 1000, 1, only=("writer",)), Demand("other", 1000, 1), Demand("more", 1, 100)]
    assert most_at(route([READER, WRITER], demands))["repeatable"] == "writer"
    (shares,) = route([READER, WRITER], [Demand("whole", 10, 10, whole=True)]).values()
    assert len(shares) == 1 and shares[0].part == 1.0


def test_no_sampler_for_a_task_is_refused() -> None:
    with pytest.raises(ValueError, match="no sampler may serve the task lost"):
        route([READER], [Demand("lost", 1, 1, only=("gone",))])
    with pytest.raises(ValueError, match="cost"):
        route([TokenCosts("free", 0.0, 1.0)], [])


def test_only_tasks_of_a_lost_sampler_move() -> None:
    samplers = [TokenCosts(f"gpu {number}", 1.0, 5.0) for number in range(3)]
    demands = [Demand(f"t{number}", 100, 20) for number in range(6)]
    before = route(samplers, demands)
    after = most_at(route(samplers[:2], demands, before))
    assert set(after.values()) == {"gpu 0", "gpu 1"}
    assert all(after[task] == name for task, name in most_at(before).items() if name != "gpu 2")
    again = route(samplers, demands, route(samplers[:2], demands, before))
    assert set(most_at(again).values()) == {"gpu 0", "gpu 1", "gpu 2"}, "a new sampler is used"


@given(crews, works)
def test_as_short_as_the_best_of_all_assignments(samplers: list[TokenCosts], demands: list[Demand]) -> None:
    """Up to the classes of mixes and to small parts that are not split off."""
    routes = route(samplers, demands)
    rounding = 2 ** (1 / CELLS) * (1 + (len(samplers) - 1) * LEAST_PART * 4)
    assert busiest(samplers, demands, routes) <= rounding * best_whole(samplers, demands)


@given(crews, works)
def test_every_task_is_served_wholly_and_few_at_several_places(
    samplers: list[TokenCosts], demands: list[Demand]
) -> None:
    routes = route(samplers, demands)
    assert set(routes) == {demand.task for demand in demands}
    assert all(math.isclose(sum(share.part for share in shares), 1.0) for shares in routes.values())
    assert sum(len(shares) > 1 for shares in routes.values()) < max(2, len(samplers))


@given(crews, works)
@example(
    [TokenCosts("s0", 8.0, 42.0), TokenCosts("s1", 31.0, 1.0), TokenCosts("s2", 32.0, 1.0)],
    [Demand("t0", 5.0, 1.0), Demand("t1", 44.0, 2.0), Demand("t2", 48.0, 11.0), Demand("t3", 76.0, 15.0)],
)
def test_routes_stay_and_do_not_depend_on_the_order(samplers: list[TokenCosts], demands: list[Demand]) -> None:
    routes = route(samplers, demands)
    assert route(samplers[::-1], demands[::-1]) == routes
    assert route(samplers, demands, routes) == routes


@given(crews, works, st.lists(st.floats(0.97, 1.03), min_size=10, max_size=10))
def test_noise_moves_nobody(samplers: list[TokenCosts], demands: list[Demand], noise: list[float]) -> None:
    routes = route(samplers, demands)
    shaken = [
        Demand(demand.task, demand.prefilled * noise[2 * number], demand.sampled * noise[2 * number + 1])
        for number, demand in enumerate(demands)
    ]
    again = route(samplers, shaken, routes, worth=0.5)
    assert again == routes


def test_a_guess_has_the_mix_and_the_size_of_the_others() -> None:
    guessed = guess("new", prompt=300, reply=100, other=mean_of([Demand("a", 100, 50), Demand("b", 300, 150)]))
    assert guessed.prefilled / guessed.sampled == pytest.approx(3)
    assert guessed.prefilled + 2 * guessed.sampled == pytest.approx(400)


GUESS = TokenCosts("rollout", 1e-4, 3e-4)
seconds = st.floats(1e-6, 1e-2)


def fed(windows: Sequence[tuple[float, float]], prefilled: float, sampled: float, meter: CostMeter) -> CostMeter:
    """After windows of so many tokens of both kinds at a sampler with these costs."""
    totals = [0.0, 0.0, 0.0]
    for read, written in windows:
        totals = [totals[0] + read, totals[1] + written, totals[2] + read * prefilled + written * sampled]
        meter = meter.seen(*totals)
    return meter


@given(seconds, seconds)
def test_alike_windows_cost_what_they_took(prefilled: float, sampled: float) -> None:
    """However it is divided between both kinds."""
    costs = fed([(1000, 200)] * 5, prefilled, sampled, CostMeter(GUESS)).costs
    took = 1000 * prefilled + 200 * sampled
    assert 1000 * costs.prefilled + 200 * costs.sampled == pytest.approx(took, rel=0.05)


@given(st.floats(1e-5, 1e-4), st.floats(0.5, 20.0))
def test_different_mixes_tell_the_two_kinds_apart(prefilled: float, proportion: float) -> None:
    """In windows of up to some seconds, of which no single one makes those before forgotten."""
    windows = [(5000, 50), (100, 1500)] * 20
    costs = fed(windows, prefilled, proportion * prefilled, CostMeter(GUESS)).costs
    assert costs.sampled / costs.prefilled == pytest.approx(proportion, rel=0.25)


def test_a_fresh_worker_begins_at_nothing() -> None:
    meter = fed([(1000, 1000)] * 3, 1e-4, 1e-3, CostMeter(GUESS))
    again = meter.seen(1000, 1000, 1.1)
    assert again.costs.sampled == pytest.approx(meter.costs.sampled, rel=0.01)


@given(st.lists(st.tuples(st.floats(0, 1e6), st.floats(0, 1e6), st.floats(0, 100)), max_size=20))
def test_costs_are_always_above_nothing(windows: list[tuple[float, float, float]]) -> None:
    meter = CostMeter(GUESS).seen(0, 0, 0)
    assert meter.costs == CostMeter(GUESS).costs == GUESS, "nothing was seen"
    for window in windows:
        meter = meter.seen(*window)
    assert meter.costs.prefilled > 0 and meter.costs.sampled > 0


READS, WRITES = TokenCosts("rollout", 1.0, 9.0), TokenCosts("rollout-2", 3.0, 3.0)
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
        for place, kind in zip(self.endpoints, kinds, strict=True):
            place.kind, place.repeatable = kind, repeatable  # type: ignore[assignment]
        self.mixes: dict[int, dict[str, Mix]] = {}
        self.costs = [READS, WRITES]
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
        assert routing.samplers(task)
    routing.played(1, 500, 5)
    routing.played(2, 5, 250)
    routes = routing.samplers(1), routing.samplers(2)
    assert [samplers[0] for samplers in routes] == ["rollout", "rollout-2"]
    routing.played(1, 500, 5)
    assert (routing.samplers(1), routing.samplers(2)) == routes, "nothing moves without a reason"
    for costs, first, second in (
        ([TokenCosts("rollout", 3.0, 1.0), TokenCosts("rollout-2", 1.0, 3.0)], "rollout-2", "rollout"),
        ([READS, WRITES], "rollout", "rollout-2"),
    ):
        routing.costs = costs
        routing.now += AGAIN
        assert (routing.samplers(1)[0], routing.samplers(2)[0]) == (first, second)


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
    assert [(share.sampler, share.part) for share in routing.router.shares(1, ONLY)] == [("rollout", 1.0)]
    assert not routing.told, "nobody needs to hear of the only sampler"
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


def test_a_pool_counts_for_the_policy_of_its_versions() -> None:
    demands = []
    for policies in ({"solver": (30, 30)}, {"solver": (10, 10), "before": (20, 20)}):
        routing = Routing("torch", "torch")
        routing.router.join(1, DEBATE)
        routing.heard(1, **policies)
        demands.append([replace(demand, turns=0.0) for demand in routing.router.demands()])
    assert demands[0] == demands[1] and [demand.task for demand in demands[0]] == ["1/solver", "1/critic", "1/judge"]
    assert [demand.sampled for demand in demands[0]] == [30 * min(256, 3 * 2 * DEBATE.train.group_size), 0.0, 0.0]


def test_it_tells_which_samplers_a_policy_has() -> None:
    routing = Routing("llama.cpp", "torch")
    routing.router.join(1, MOVING)
    assert routing.samplers(1) == routing.samplers(1)
    assert routing.told == ["1: The task is sampled by llama.cpp (rollout) and torch (rollout-2)."], "once"
    routing.router.leave(1)
    routing.router.join(1, MOVING)
    routing.router.join(3, DEBATE)
    routing.samplers(1), routing.samplers(3, "critic")
    assert len(routing.told) == 3 and routing.told[-1].startswith("3: The policy critic is sampled by ")


class Working(FakeSampler):
    """Says totals that a test sets; None: nothing at all."""

    totals: SamplerStats | None = SamplerStats(0, 0, 0.0, 0, 0)

    async def stats(self) -> SamplerStats:
        if self.totals is None:
            await asyncio.Event().wait()
        assert self.totals is not None
        return self.totals


async def test_costs_are_learnt_and_silence_delays_nobody() -> None:
    reads, silent = Working(), Working()
    endpoints = SamplerEndpoints([endpoint(reads, 1, 8), endpoint(silent, 1, 8, "rollout-2")], {}, load_base("tiny"))
    guess, other = endpoints.costs()
    silent.totals = None
    for step in range(1, 6):
        reads.totals = SamplerStats(100 * step, 1000 * step, 2.0 * step, 1, 0)
        assert list(await endpoints.stats(0.01)) == ["rollout"]
    learnt, untouched = endpoints.costs()
    assert untouched == other and learnt.name == "rollout"
    assert learnt.prefilled * 1000 + learnt.sampled * 100 == pytest.approx(2.0, rel=0.05) and learnt != guess


@pytest.mark.parametrize(
    ("kind", "gpus", "stored", "expected"),
    [
        ("torch", (), "f32", True),
        ("llama.cpp", (), "q8_0", True),
        ("llama.cpp", (), "q4_k_m", False),
        ("llama.cpp", ("GPU-1",), "f32", False),
        ("vllm", (), "f32", False),
    ],
)
def test_what_repeats_itself_to_the_last_bit(
    kind: SamplerKind, gpus: tuple[str, ...], stored: str, expected: bool
) -> None:
    assert repeats(SamplerAssignment("rollout", kind, Place(gpus=gpus)), stored) is expected


async def test_samplers_that_are_alike_cost_alike() -> None:
    """Few conversations in a pass take nearly as long as many: the one that is asked little must not look slow."""
    much, little, other = Working(), Working(), Working()
    places = [endpoint(sampler, 1, 8, name) for sampler, name in ((much, "a"), (little, "b"), (other, "c"))]
    for place in places[:2]:
        place.alike = "torch, f32, 1 cores"
    endpoints = SamplerEndpoints(places, {}, load_base("tiny"))
    for step in range(1, 6):
        much.totals = SamplerStats(1000 * step, 1000 * step, 1.0 * step, 1, 0)
        little.totals = SamplerStats(100 * step, 100 * step, 0.5 * step, 1, 0)
        other.totals = SamplerStats(100 * step, 100 * step, 0.5 * step, 1, 0)
        await endpoints.stats(1.0)
    (first, second, third), shared = endpoints.costs(), 1.5 / 1100
    assert [cost.name for cost in endpoints.costs()] == ["a", "b", "c"]
    assert (first.prefilled, first.sampled) == (second.prefilled, second.sampled)
    assert first.prefilled + first.sampled == pytest.approx(shared, rel=0.05)
    assert third.prefilled + third.sampled == pytest.approx(0.5 / 100, rel=0.05)


def test_devices_are_alike_that_have_one_name() -> None:
    """Processors of two nodes are not: their tokens may cost differently, whatever their cores are called."""
    cards = tuple(Gpu(n, f"GPU-{n}", "A100" if n < 2 else "T4", "cuda", 1, 1) for n in range(3))
    machine = Machine(Cpu((), 1, 1), cards)
    words = [device_of(SamplerAssignment("rollout", "vllm", Place(gpus=(card.uuid,))), machine) for card in cards]
    assert words == ["A100", "A100", "T4"]
    assert device_of(SamplerAssignment("rollout", "vllm", Place(gpus=("GPU-9",))), machine) == ""
    named = replace(machine, cpu=replace(machine.cpu, name="EPYC"))
    for node, of, words_of_node in (
        ("", None, "2 cores"),
        ("b", machine, "2 cores of b"),
        ("c", machine, "2 cores of c"),
        ("d", named, "2 cores of EPYC"),
    ):
        assignment = SamplerAssignment("rollout", "torch", Place(cores=(0, 1)), node=node)
        assert device_of(assignment, of) == words_of_node


CARD = SamplerAssignment("rollout", "vllm", Place(gpus=("GPU-0",)))
CORES = SamplerAssignment("rollout-2", "torch", Place(cores=(0, 1, 2)))


class Worker(FakeSampler):
    """Takes so many seconds for a token of either kind, and says its totals."""

    def __init__(self, read: float, written: float) -> None:
        super().__init__()
        self.read, self.written = read, written
        self.totals = [0, 0, 0.0]

    def work(self, read: int, written: int) -> None:
        seconds = read * self.read + written * self.written
        self.totals = [self.totals[0] + written, self.totals[1] + read, self.totals[2] + seconds]

    async def stats(self) -> SamplerStats:
        sampled, read, busy = self.totals
        return SamplerStats(int(sampled), int(read), busy, 0, 0)


class Lab:
    """A reader and a writer at both, with a clock of their own; costs are in microseconds."""

    def __init__(self) -> None:
        self.now, self.ledger = 0.0, Ledger()
        self.card, self.cores = Worker(1e-6, 4e-6), Worker(2e-4, 3e-4)
        places = [endpoint(self.card, 8, 512, "rollout"), endpoint(self.cores, 8, 512, "rollout-2")]
        rates = rates_at([CARD, CORES], lambda node: machine("A100"))
        self.endpoints = SamplerEndpoints(places, {}, load_base("tiny"), rates)
        self.router = Router(places, self.endpoints.costs, self.ledger.mixes, lambda: self.now)
        for task in (1, 2):
            self.router.join(
                task, TaskSpec("lab", f"t{task}", "sums", sampling=SamplingSpec(max_tokens=32, max_episode_tokens=256))
            )

    async def routes(self) -> list[set[str]]:
        """Where both are, after both have played and both samplers worked for a while."""
        for task, (read, written) in ((1, (900, 10)), (2, (10, 300))):
            self.ledger.rollout(task, read, written, policy=ONLY)
            self.ledger.environment(task, 0.0)
        for worker in (self.card, self.cores):
            worker.work(90_000, 1_000)
            await self.endpoints.stats(1.0)
            worker.work(1_000, 30_000)
            await self.endpoints.stats(1.0)
        self.now += AGAIN
        return [{share.sampler for share in self.router.shares(task, ONLY)} for task in (1, 2)]


def test_rates_are_those_of_the_devices() -> None:
    found = machine("A100")
    rates = rates_at([CARD, CORES], lambda node: found)
    assert rates["rollout"] == found.gpus[0].rates
    assert rates["rollout-2"] == Rates(3 * CORE.matrix, 3 * CORE.bandwidth), "no core is measured: the usual one"
    assert rates_at([CORES], lambda node: machine()) == rates_at([CARD, CORES], lambda node: None) == {}
    assert SERVER.rates is None
    machines = {"": plain("", LAPTOP).machine, "b": plain("b", SERVER).machine}
    here = SamplerAssignment("rollout", "torch", Place(cores=(0, 1)))
    there = SamplerAssignment("rollout-2", "torch", Place(cores=tuple(range(32))), node="b")
    over_nodes = rates_at([here, there], machines.__getitem__)
    assert over_nodes["rollout-2"].matrix == 16 * over_nodes["rollout"].matrix, "over several machines these differ"
    assert rates_at([here], machines.__getitem__) == {}


async def test_what_runs_is_believed_and_noise_moves_nobody() -> None:
    lab = Lab()
    by_rates = [{share.sampler for share in lab.router.shares(task, ONLY)} for task in (1, 2)]
    assert by_rates == await lab.routes() == [{"rollout"}] * 2, "also before anything ran"
    lab.card.read, lab.card.written = 1e-4, 9e-4  # others use the card
    for _ in range(60):
        moved = await lab.routes()
    assert moved == [{"rollout"}, {"rollout-2"}], "the writer goes to the processor"
    for waver in (1.06, 0.95, 1.04, 0.97):
        lab.card.read, lab.card.written = waver * 1e-4, waver * 9e-4
        assert await lab.routes() == moved
    lab.card.read, lab.card.written = 1e-6, 4e-6
    for _ in range(60):
        moved = await lab.routes()
    assert moved == [{"rollout"}] * 2


def test_what_speaks_often_stays_near() -> None:
    """Equal samplers, one of them far: tasks with the same tokens in many turns and in one."""
    near = TokenCosts("near", 1e-4, 3e-4)
    far = behind(TokenCosts("far", 1e-4, 3e-4), Link(call=0.1), slots=1)
    demands = [Demand("agent", 1000, 1000, turns=20), Demand("essay", 1000, 1000, turns=1)]
    routes = route([near, far], demands)
    assert routes["essay"][0].sampler == "far"
    assert [share.sampler for share in routes["agent"]] == ["near"]


def test_a_turn_goes_far_only_where_it_is_done_sooner() -> None:
    near, far = endpoint(FakeSampler(), 8, 512, "near"), endpoint(FakeSampler(), 8, 512, "far")
    endpoints = SamplerEndpoints([near, far], {}, load_base("tiny"), links={"far": Link(0.5, 1e-6)})
    assert (near.backlog.way, far.backlog.way) == (0.0, 0.5)
    here, there = endpoints.costs()
    assert here.turn == 0 and there.turn == 0.5 / 8
    assert there.prefilled > here.prefilled and there.sampled > here.sampled
    assert behind(here, None, 8) is behind(here, Link(), 8) is here, "no link costs nothing"
    tokens = np.arange(10, dtype=np.int32)
    for waiting, name in ((10, "near"), (10_000, "far")):
        with near.backlog.turn(0, waiting):
            assert Replicas([near, far]).choose(tokens, 10.0)[0].name == name
