"""Which sampler a turn goes to: the one where it is done first; nobody moves without need, nobody waits beside an idle
one."""

from __future__ import annotations

from contextlib import ExitStack

import numpy as np
import pytest

from marlaas.engine.rollout.slots import Replicas, SamplerEndpoint
from marlaas.engine.trajectories import Tokens

from ..endpoints import endpoint
from ..fake import FakeSampler


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
