"""Two workers lend each other their cores: who computes takes those of who does not, and gives them back."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from marlaas.engine.devices.limits import LentCores, Loan


class Worker:
    """One side of a loan of cores 0 and 1, and what it has told torch and the kernel."""

    def __init__(self, path: Path, place: int) -> None:
        self.threads: list[int] = []
        self.cores = LentCores(Loan(str(path), place, (place,), (1 - place,)), self.threads.append)


@pytest.fixture
def pinned(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, ...]]:
    told: list[tuple[int, ...]] = []
    monkeypatch.setattr(os, "sched_setaffinity", lambda thread, cores: told.append(tuple(cores)))
    return told


def test_who_works_alone_has_both_cores(tmp_path: Path, pinned: list[tuple[int, ...]]) -> None:
    sampler, trainer = Worker(tmp_path / "cores", 0), Worker(tmp_path / "cores", 1)
    with sampler.cores.round():
        sampler.cores.settle(True)
    assert (sampler.threads, pinned) == ([2], [(0, 1)])
    with trainer.cores.round():
        trainer.cores.settle(True)
        assert trainer.threads == [], "the sampler is at work until it rests"
        sampler.cores.settle(True)
        assert (sampler.threads, pinned) == ([2, 1], [(0, 1), (0,)]), "it gives the core back between two layers"
        sampler.cores.rest()
        trainer.cores.settle(True)
        assert (trainer.threads, pinned[-1]) == ([2], (1, 0))
        trainer.cores.rest()
    assert (trainer.threads, pinned[-1]) == ([2, 1], (1,))


def test_what_must_repeat_keeps_to_its_own_core(tmp_path: Path, pinned: list[tuple[int, ...]]) -> None:
    sampler, trainer = Worker(tmp_path / "cores", 0), Worker(tmp_path / "cores", 1)
    with trainer.cores.round():
        trainer.cores.settle(False)
        assert trainer.threads == []
        trainer.cores.settle(True)
        trainer.cores.settle(False)
    assert trainer.threads == [2, 1] and sampler.threads == []


def test_a_worker_that_is_not_there_lends_nothing(tmp_path: Path, pinned: list[tuple[int, ...]]) -> None:
    sampler = Worker(tmp_path / "cores", 0)
    with sampler.cores.round():
        sampler.cores.settle(True)
    assert sampler.threads == [] and pinned == []


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="the system cannot pin threads")
def test_a_core_that_is_gone_ends_nothing(tmp_path: Path) -> None:
    before = os.sched_getaffinity(0)
    Worker(tmp_path / "cores", 1)
    threads: list[int] = []
    cores = LentCores(Loan(str(tmp_path / "cores"), 0, (100_000,), (100_001,)), threads.append)
    with cores.round():
        cores.settle(True)
    assert threads == [] and os.sched_getaffinity(0) == before


def test_without_a_file_nothing_is_lent(tmp_path: Path, pinned: list[tuple[int, ...]]) -> None:
    path = tmp_path / "gone" / "cores"
    sampler, trainer = Worker(path, 0), Worker(path, 1)
    trainer.cores.rest()
    with sampler.cores.round():
        sampler.cores.settle(True)
    assert sampler.threads == [] and pinned == []
