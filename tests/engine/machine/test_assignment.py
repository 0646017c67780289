"""Tasks go where their mix of tokens is cheapest, no sampler waits for another, and nobody wanders without need."""

import math
from collections import Counter
from collections.abc import Sequence
from itertools import product

import pytest
from hypothesis import example, given, strategies as st

from marlaas.engine.devices.machine import Rates
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
    guessed,
    mean_of,
    route,
)

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


@given(crews, works)
def test_a_further_sampler_never_makes_the_busiest_busier(samplers: list[TokenCosts], demands: list[Demand]) -> None:
    fewer = busiest(samplers, demands, route(samplers, demands))
    more = [*samplers, TokenCosts("further", 1.0, 1.0)]
    assert busiest(more, demands, route(more, demands, route(samplers, demands), worth=0.0)) <= 1.0001 * fewer


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


def test_what_was_long_ago_is_forgotten() -> None:
    meter = fed([(1000, 1000)] * 100, 1e-3, 1e-3, CostMeter(GUESS))
    now = [*meter.totals]
    for _ in range(2000):
        now = [now[0] + 1000, now[1] + 1000, now[2] + 0.4]
        meter = meter.seen(*now)
    assert 1000 * (meter.costs.prefilled + meter.costs.sampled) == pytest.approx(0.4, rel=0.05)


@given(st.lists(st.tuples(st.floats(0, 1e6), st.floats(0, 1e6), st.floats(0, 100)), max_size=20))
def test_costs_are_always_above_nothing(windows: list[tuple[float, float, float]]) -> None:
    meter = CostMeter(GUESS).seen(0, 0, 0)
    assert meter.costs == CostMeter(GUESS).costs == GUESS, "nothing was seen"
    for window in windows:
        meter = meter.seen(*window)
    assert meter.costs.prefilled > 0 and meter.costs.sampled > 0


def test_a_guess_knows_what_a_card_is_good_at() -> None:
    reader = guessed("reader", 1_500_000_000, 3_000_000_000, Rates(matrix=800e12, bandwidth=1e12))
    writer = guessed("writer", 1_500_000_000, 3_000_000_000, Rates(matrix=150e12, bandwidth=4e12))
    assert reader.prefilled < writer.prefilled
    assert reader.sampled > writer.sampled
    unknown = guessed("unknown", 1, 1, None)
    assert unknown.sampled > unknown.prefilled > 0
