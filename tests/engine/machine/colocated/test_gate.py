"""Threads before the gate: one computes at a time, and neither party gets ahead of the other."""

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from marlaas.engine.machine.colocated import Gate, Party

PARTIES: tuple[Party, ...] = ("sampler", "trainer")


def test_passes_of_two_threads_never_overlap() -> None:
    gate, inside, most = Gate(), 0, 0

    def compute(party: Party) -> None:
        nonlocal inside, most
        with gate.busy(party):
            for _ in range(300):
                with gate.turn(party):
                    inside += 1
                    most = max(most, inside)
                    inside -= 1

    with ThreadPoolExecutor(2) as threads:
        for done in [threads.submit(compute, party) for party in PARTIES]:
            done.result()
    assert most == 1


@pytest.mark.parametrize(("sampling", "training"), [(0.05, 1.0), (1.0, 0.05), (0.3, 0.3), (0.01, 0.7)])
def test_each_has_half_of_the_time(sampling: float, training: float) -> None:
    """While both have work, whatever their passes take."""
    now, lengths, computed = 0.0, {"sampler": sampling, "trainer": training}, dict.fromkeys(PARTIES, 0.0)
    gate, both = Gate(lambda: now), threading.Barrier(2)

    def compute(party: Party) -> None:
        nonlocal now
        with gate.busy(party):
            both.wait()
            while now < 30.0:
                with gate.turn(party):
                    now += lengths[party]
                    computed[party] += lengths[party]

    with ThreadPoolExecutor(2) as threads:
        for done in [threads.submit(compute, party) for party in PARTIES]:
            done.result()
    assert abs(computed["sampler"] - computed["trainer"]) <= 2 * max(sampling, training)


def test_one_without_the_other_has_all_of_it() -> None:
    seconds = iter(range(100))
    gate = Gate(lambda: float(next(seconds)))
    for party in ("sampler", "sampler", "trainer", "sampler"):
        with gate.busy(party), gate.turn(party):
            pass


def test_a_pass_that_fails_gives_the_device_back() -> None:
    gate = Gate()
    with pytest.raises(ZeroDivisionError), gate.turn("trainer"):
        1 / 0  # noqa: B018
    with gate.turn("sampler"):
        pass
