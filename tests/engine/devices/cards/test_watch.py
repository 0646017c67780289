"""When cards that were lost, or are to be had, have work placed anew."""

from __future__ import annotations

from hypothesis import given, strategies as st

from marlaas.engine.devices.usable import LEAVE, TAKE, CardWatch

A, B = "GPU-0", "GPU-1"
looks = st.lists(st.frozensets(st.sampled_from([A, B])), max_size=40)


def after(usable: list[frozenset[str]], used: frozenset[str] = frozenset({A})) -> CardWatch:
    watch = CardWatch().planned({A})
    for one in usable:
        watch = watch.after(one, used)
    return watch


def test_a_lost_card_is_left_soon_but_not_at_once() -> None:
    assert not after([frozenset()] * (LEAVE - 1)).leaves
    assert after([frozenset()] * LEAVE).leaves
    assert not after([frozenset(), frozenset({A})] * LEAVE).leaves


def test_a_card_that_nobody_uses_may_go() -> None:
    assert not after([frozenset()] * LEAVE, used=frozenset()).leaves


def test_a_card_that_comes_free_is_taken_once_it_has_stayed_so() -> None:
    assert not after([frozenset({A, B})] * (TAKE - 1)).takes
    assert after([frozenset({A, B})] * TAKE).takes
    planned = after([frozenset({A, B})] * TAKE).planned({A, B})
    for _ in range(TAKE):
        planned = planned.after({A, B}, {A})
    assert not planned.takes, "the plan has known it, and left it alone"


def test_a_card_that_went_and_came_back_is_taken_again() -> None:
    gone = after([frozenset()] * LEAVE).planned(frozenset())
    for _ in range(TAKE):
        gone = gone.after({A}, frozenset())
    assert gone.takes


@given(looks)
def test_nothing_moves_without_a_reason_at_the_last_look(usable: list[frozenset[str]]) -> None:
    watch, last = after(usable), usable[-1] if usable else frozenset({A})
    assert not (watch.leaves and A in last)
    assert not (watch.takes and last <= {A} and all(A in one for one in usable))
