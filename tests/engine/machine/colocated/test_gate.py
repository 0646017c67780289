"""Threads before the gate: one computes at a time."""

import threading
from concurrent.futures import ThreadPoolExecutor
from itertools import count

import pytest

from marlaas.engine.machine.colocated import Gate, Party

FOREVER = 1e9


def test_passes_of_two_threads_never_overlap() -> None:
    gate, inside, most = Gate(0.0), 0, 0

    def compute(party: Party) -> None:
        nonlocal inside, most
        with gate.busy(party):
            for _ in range(300):
                with gate.turn(party):
                    inside += 1
                    most = max(most, inside)
                    inside -= 1

    with ThreadPoolExecutor(2) as threads:
        for done in [threads.submit(compute, party) for party in ("sampler", "trainer")]:
            done.result()
    assert most == 1 and gate.turns.waiting == frozenset()


def test_only_a_holder_with_work_is_waited_for() -> None:
    gate = Gate(FOREVER)
    order: list[str] = []

    def train() -> None:
        with gate.turn("trainer"):
            order.append("trainer")

    with gate.busy("sampler"):
        with gate.turn("sampler"):
            order.append("sampler")
        training = threading.Thread(target=train)
        training.start()
        with gate.turn("sampler"):
            order.append("sampler")
    training.join()
    assert order == ["sampler", "sampler", "trainer"]


def test_a_pass_outside_of_any_call_keeps_nobody_waiting() -> None:
    gate = Gate(FOREVER)
    for party in ("sampler", "trainer", "sampler"):
        with gate.turn(party):
            assert gate.turns.holder == party


def test_a_slice_may_end_between_two_looks_at_the_clock() -> None:
    main, seconds = threading.current_thread(), count()
    gate = Gate(
        3.5, holder="sampler", clock=lambda: float(next(seconds)) if threading.current_thread() is main else 0.0
    )

    def train() -> None:
        with gate.turn("trainer"):
            pass

    training = threading.Thread(target=train)
    with gate.busy("sampler"):
        with gate.turn("sampler"):
            training.start()
            while not gate.turns.waiting:
                pass
        with gate.turn("sampler"):  # with 1.5 s left, and less than nothing two looks later
            pass
    training.join()


def test_a_pass_that_fails_gives_the_device_back() -> None:
    gate = Gate(FOREVER)
    with pytest.raises(ZeroDivisionError), gate.turn("trainer"):
        1 / 0  # noqa: B018
    with gate.turn("sampler"):
        assert gate.turns.holder == "sampler"
