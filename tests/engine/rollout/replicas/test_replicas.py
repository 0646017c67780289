"""Which sampler a turn goes to: the one where it is done first; nobody moves without need, nobody waits beside an idle
one."""

from __future__ import annotations

from contextlib import ExitStack

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from marlaas.engine.rollout.slots import Offer, Replicas, SamplerEndpoint, least
from marlaas.engine.trajectories import Tokens

from ....examples import examples
from ..endpoints import endpoint
from ..fake import FakeSampler

seconds = st.floats(0.0, 100.0)
strangers = st.lists(st.builds(Offer, seconds, seconds), min_size=1, max_size=5)
offered = st.lists(st.builds(Offer, seconds, seconds, seconds), min_size=1, max_size=5)


@settings(max_examples=examples())
@given(strangers)
def test_what_is_remembered_nowhere_goes_where_it_is_done_first(offers: list[Offer]) -> None:
    assert offers[least(offers)].seconds == min(offer.seconds for offer in offers)


@settings(max_examples=examples())
@given(offered, seconds, seconds)
def test_a_turn_moves_only_where_that_gains_more_than_it_costs(
    others: list[Offer], backlog: float, turn: float
) -> None:
    home = Offer(backlog, turn)
    chosen = [home, *others][least([home, *others])]
    assert home.seconds - chosen.seconds >= chosen.again - 1e-9


@settings(max_examples=examples())
@given(offered)
def test_the_choice_depends_on_no_unit_and_no_third_sampler(offers: list[Offer]) -> None:
    chosen = least(offers)
    longer = [Offer(2 * one.backlog, 2 * one.turn, 2 * one.again) for one in offers]
    assert least(longer) == chosen
    assert least([*offers, Offer(301.0, 0.0)]) == chosen, "one that is later than all is not asked"


@settings(max_examples=examples())
@given(seconds, st.floats(0.0, 10.0), st.floats(0.0, 10.0), st.lists(seconds, min_size=1, max_size=3))
def test_nobody_leaves_a_sampler_that_has_nothing_else_to_do(
    turn: float, new: float, history: float, backlogs: list[float]
) -> None:
    """Elsewhere, at a sampler that is as fast, all must be read that is remembered here."""
    others = [Offer(1e-3 + backlog, turn + new + history, history) for backlog in backlogs]
    assert least([*others, Offer(0.0, turn + new)]) == len(backlogs)


@settings(max_examples=examples())
@given(st.lists(st.floats(0.01, 10.0), min_size=1, max_size=40), st.integers(1, 4))
def test_turns_at_equal_samplers_end_within_twice_the_bound(turns: list[float], count: int) -> None:
    """List scheduling: at most the mean, and one turn more (Graham 1966)."""
    backlogs = [0.0] * count
    for turn in turns:
        backlogs[least([Offer(backlog, turn) for backlog in backlogs])] += turn
    assert max(backlogs) <= sum(turns) / count + max(turns) * (1 + 1e-9)


def test_no_offer_is_an_error() -> None:
    with pytest.raises(ValueError, match="empty"):
        least([])


def pair(read: float = 1.0, written: float = 1.0) -> tuple[SamplerEndpoint, SamplerEndpoint]:
    """Two samplers of these costs."""
    first, second = (endpoint(FakeSampler(), 4, length, f"s{length}") for length in (64, 48))
    for one in (first, second):
        one.backlog.read, one.backlog.written = read, written
    return first, second


def context(count: int) -> Tokens:
    return np.arange(count, dtype=np.int32)


def test_work_is_counted_in_the_samplers_own_seconds() -> None:
    quick, slow = pair()
    slow.backlog.read = slow.backlog.written = 5.0
    assert Replicas([slow, quick]).choose(context(10), 10) == (quick, 10)
    with quick.backlog.turn(50, 20), quick.backlog.turn(0, 0.1):
        assert quick.backlog.seconds == pytest.approx(70.1)
        assert Replicas([slow, quick]).choose(context(10), 10)[0] is quick, "100 seconds there, 90.1 here"
        with quick.backlog.turn(11, 0):
            assert Replicas([slow, quick]).choose(context(10), 10)[0] is slow
    assert quick.backlog.seconds == 0.0
    assert Replicas([slow, quick]).context == 48, "a conversation may go to either"


def test_members_stay_together_where_their_prompt_is_long() -> None:
    """The first at a sampler pays for reading the prompt; the others copy it."""
    for prompt, at_second in ((30, 0), (10, 2), (1, 4)):
        first, second = pair()
        replicas, went = Replicas([first, second]), []
        with ExitStack() as under_way:
            for _ in range(8):
                place, unread = replicas.choose(context(prompt), 2)
                under_way.enter_context(place.backlog.turn(unread, 2))
                replicas.begin(place, context(prompt).tobytes())
                went.append((place, unread))
        assert sum(place is second for place, _ in went) == at_second
        assert sum(unread for _, unread in went) == prompt * len({place.name for place, _ in went})


def test_a_prompt_that_nobody_holds_any_more_is_read_again() -> None:
    first, second = pair()
    replicas, prompt = Replicas([first, second]), context(9).tobytes()
    replicas.begin(second, prompt)
    assert replicas.choose(context(9), 1) == (second, 0)
    replicas.end(second, prompt)
    assert replicas.choose(context(9), 1) == (first, 9)


def test_a_turn_moves_once_waiting_costs_more_than_reading() -> None:
    first, second = pair()
    replicas = Replicas([first, second])
    for waiting, chosen in ((39, (first, 4)), (41, (second, 24))):  # 45 or 47 seconds here; 26 there, and 20 lost
        with first.backlog.turn(waiting, 0):
            assert replicas.choose(context(24), 2, first, held=20) == chosen
