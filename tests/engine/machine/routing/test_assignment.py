"""Tasks go where their mix of tokens is cheapest, no sampler waits for another, and nobody wanders without need."""

import math
from collections import Counter
from itertools import product

import pytest
from hypothesis import example, given, strategies as st

from marlaas.engine.machine.routing.assignment import (
    CELLS,
    LEAST_PART,
    Demand,
    Routes,
    Share,
    TokenCosts,
    busy_seconds,
    guess,
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


def test_readers_and_writers_get_the_sampler_they_need() -> None:
    demands = [Demand("summaries", 1000, 10), Demand("essays", 10, 60)]
    assert most_at(route([READER, WRITER], demands)) == {"summaries": "reader", "essays": "writer"}


def test_a_task_alone_uses_all_samplers_by_their_speed() -> None:
    samplers = [TokenCosts("quick", 1.0, 1.0), TokenCosts("slow", 3.0, 3.0)]
    (shares,) = route(samplers, [Demand("only", 10, 10)]).values()
    assert [share.sampler for share in shares] == ["quick", "slow"]
    assert [share.part for share in shares] == pytest.approx([0.75, 0.25])


def test_equal_tasks_on_equal_samplers_are_spread_whole() -> None:
    samplers = [TokenCosts(f"gpu {number}", 1.0, 5.0) for number in range(4)]
    routes = route(samplers, [Demand(f"t{number}", 100, 20) for number in range(8)])
    assert Counter(most_at(routes).values()) == {f"gpu {number}": 2 for number in range(4)}
    assert all(len(shares) == 1 for shares in routes.values())


def test_tasks_stay_where_they_may_be_served() -> None:
    demands = [Demand("repeatable", 1000, 1, only=("writer",)), Demand("other", 1000, 1), Demand("more", 1, 100)]
    assert most_at(route([READER, WRITER], demands))["repeatable"] == "writer"


def test_a_whole_task_is_at_one_sampler() -> None:
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


def test_a_small_gain_moves_nobody() -> None:
    demands = [Demand("a", 100, 20), Demand("b", 105, 20)]
    samplers = [TokenCosts("x", 1.0, 5.0), TokenCosts("y", 1.02, 4.9)]
    before = {"a": (Share("y", 1.0),), "b": (Share("x", 1.0),)}
    assert route(samplers, demands, before) == before


def test_a_new_sampler_is_used() -> None:
    demands = [Demand(f"t{number}", 100, 20) for number in range(4)]
    before = route([READER], demands)
    assert set(most_at(route([READER, TokenCosts("second", 1.0, 40.0)], demands, before)).values()) == {
        "reader",
        "second",
    }


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
