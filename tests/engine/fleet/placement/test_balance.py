"""Cards move when that is worth it for long enough, and stay where a load merely wavers."""

from collections.abc import Callable, Iterator
from functools import cache
from itertools import cycle, pairwise, repeat

from hypothesis import given, settings, strategies as st

from marlaas.engine.devices.machine import Machine, Placement
from marlaas.engine.fleet.placement.balance import DWELL, Balance, Window, modelled
from marlaas.engine.fleet.placement.choices import Choices, Times
from tests.engine.fleet.placement.imaginary import ALL, B06, machine, place, shape

from ....examples import examples

EIGHT = machine(*("A100",) * 8)
WINDOW = 60.0


def placed(found: Machine) -> Callable[[Times], Placement]:
    return lambda times: _placed(
        found, round(times.sampling / times.training, 2 if times.sampling < times.training else 1)
    )


@cache
def _placed(found: Machine, ratio: float) -> Placement:
    """Only the proportion matters: it is rounded, so that hours of play take no minutes."""
    return place(found, ALL, B06, Choices(), Times(max(ratio, 0.01), 1.0))


def run(
    loads: Iterator[tuple[Times, float]], hours: float, restart: float = 60.0, found: Machine = EIGHT
) -> list[tuple[float, Placement]]:
    """Play ``hours`` of work whose true times are the loads', each with noise on what sampling takes; all moves."""
    present, now, moves = placed(found)(Times()), 0.0, []
    balance = Balance(restart=restart)
    while now < 3600 * hours:
        times, noise = next(loads)
        tokens = WINDOW * modelled(present, found, times)
        window = Window(WINDOW, tokens, tokens * times.sampling * noise, tokens * times.training)
        now += WINDOW
        balance, other = balance.after(window, now, present, found, placed(found))
        if other is not None:
            now += restart
            balance, present = balance.begun(now, restart), other
            moves.append((now, present))
    return moves


def test_a_load_as_assumed_moves_nothing() -> None:
    assert run(repeat((Times(), 1.0)), hours=4) == []


def test_cards_follow_a_load_that_changes_and_come_back() -> None:
    def loads() -> Iterator[tuple[Times, float]]:
        yield from repeat((Times(), 1.0), 60)
        yield from repeat((Times(1.0, 6.0), 1.0), 120)
        yield from repeat((Times(), 1.0))

    shapes = [shape(plan) for _, plan in run(loads(), hours=6)]
    assert "vllm 0 1 | 2 3 4 5 6 7 bf16" in shapes
    assert shapes[-1] in ("vllm 0 1 2 3 4 5 | 6 7 bf16", "vllm 0 1 2 3 4 | 5 6 7 bf16"), "as good as the best, nearly"
    assert len(shapes) <= 6, "each change is followed in few steps"


def test_a_load_that_wavers_quickly_moves_nothing_for_ever() -> None:
    """Each minute another kind of work: neither is ever worth a move for long."""
    wavering = cycle([(Times(4.0, 1.0), 1.0)] * 2 + [(Times(1.0, 1.0), 1.0)] * 2)
    assert len(run(wavering, hours=8)) <= 1


@settings(max_examples=examples(10))
@given(st.floats(0.3, 10.0), st.lists(st.floats(0.7, 1.4), min_size=5, max_size=40))
def test_noise_makes_no_card_flap(sampling: float, noise: list[float]) -> None:
    moves = run(((Times(sampling, 1.0), factor) for factor in cycle(noise)), hours=6)
    assert len(moves) <= 2
    assert all(later - earlier >= DWELL for (earlier, _), (later, _) in pairwise(moves))


@settings(max_examples=examples(10))
@given(st.floats(0.1, 20.0))
def test_a_constant_load_ends_near_the_best_placement(sampling: float) -> None:
    times = Times(sampling, 1.0)
    moves = run(repeat((times, 1.0)), hours=3)
    present = moves[-1][1] if moves else placed(EIGHT)(Times())
    best = modelled(placed(EIGHT)(times), EIGHT, times)
    assert modelled(present, EIGHT, times) >= best / 1.2
    assert len(moves) <= 1


def test_a_move_that_takes_too_long_is_never_made() -> None:
    assert run(repeat((Times(1.0, 6.0), 1.0)), hours=4, restart=3000.0) == []
