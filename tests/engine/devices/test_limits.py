"""What containers, quotas and limits leave of memory and cores, cores that are lent, and memory that has run out."""

from __future__ import annotations

import os
import resource
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

from marlaas.engine.devices import limits
from marlaas.engine.devices.limits import (
    STATUS,
    LentCores,
    Loan,
    affinity,
    as_shortage,
    available_memory,
    container_room,
    keep_within,
    own_cores,
    quota,
    ran_out,
    read_processor,
)
from marlaas.engine.errors import CallFailed, OutOfMemory


def memory(limit: object, usage: int, cached: int, version: int = 2) -> dict[str, str]:
    """Files of a group."""
    names = ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")
    of_limit, of_usage, of_cached = names if version == 1 else ("memory.max", "memory.current", "inactive_file")
    return {of_limit: f"{limit}\n", of_usage: f"{usage}\n", "memory.stat": f"anon 5\n{of_cached} {cached}\nslab 9\n"}


def processor(quota: int, period: int = 100_000) -> dict[str, str]:
    return {"cpu.cfs_quota_us": f"{quota}\n", "cpu.cfs_period_us": f"{period}\n"}


Groups = dict[str, dict[str, str]]
"""Files by the path of their group."""
MEMORY_2: Groups = {"a": memory(1000, 600, 50), "a/b": memory("max", 500, 0), "a/b/c": memory(900, 300, 100)}
MEMORY_1: Groups = {"memory": memory(2**63 - 4096, 10, 0, 1), "memory/x": memory(2000, 1500, 200, 1)}
QUOTA_2: Groups = {
    "a": {"cpu.max": "150000 100000\n"},
    "a/b": {"cpu.max": "max 100000\n"},
    "a/b/c": {"cpu.max": "800000 200000\n"},
}
QUOTA_1: Groups = {"cpu": processor(-1), "cpu/x": processor(250_000)}


def shown(folder: Path, groups: Groups, membership: str) -> tuple[Path, Path]:
    """Where a process reads its membership, and the mounted groups."""
    (folder / "membership").write_text(membership)
    for group, files in groups.items():
        (folder / "mounted" / group).mkdir(parents=True, exist_ok=True)
        for name, text in files.items():
            (folder / "mounted" / group / name).write_text(text)
    return folder / "membership", folder / "mounted"


@pytest.mark.parametrize(
    ("read", "groups", "membership", "left"),
    [
        (container_room, MEMORY_2, "0::/a/b/c\n", 450),
        (container_room, MEMORY_2, "0::/a/b\n", 450),
        (container_room, MEMORY_2, "0::/\n", None),
        (container_room, {"": memory(100, 200, 50)}, "0::/\n", 0),  # the limit was lowered
        (container_room, MEMORY_1, "5:devices:/\n4:cpu,memory:/x/gone\n0::/\n", 700),
        (container_room, MEMORY_1, "4:memory:/\n", None),  # version 1 says no limit by a large number
        (container_room, {"": memory(5000, 1000, 0)}, "0::/docker/0123\n", 4000),  # seen as the root
        (container_room, {"": memory(5000, 1000, 0)}, "0::/../../other\n", 4000),
        (container_room, {"": {"memory.max": "many"}}, "nonsense\n0::/\n", None),
        (quota, QUOTA_2, "0::/a/b/c\n", 1.5),
        (quota, QUOTA_2, "0::/\n", None),
        (quota, QUOTA_1, "4:cpu,cpuacct:/x\n0::/\n", 2.5),
        (quota, QUOTA_1, "4:cpu,cpuacct:/\n", None),
        (quota, QUOTA_1, "4:cpuset:/x\n", None),
    ],
)
def test_groups_leave_the_least_on_the_way_up(
    tmp_path: Path,
    read: Callable[[Path, Path], float | None],
    groups: Groups,
    membership: str,
    left: float | None,
) -> None:
    assert read(*shown(tmp_path, groups, membership)) == left
    assert read(tmp_path / "missing", tmp_path) is None


def test_the_machine_bounds_everything(monkeypatch: pytest.MonkeyPatch) -> None:
    assert 0 < available_memory() < 1 << 50
    monkeypatch.setattr(resource, "getrlimit", lambda _: (12_345, 99_999))
    assert available_memory() == 12_345


@pytest.mark.skipif(not affinity(), reason="this system pins no process")
def test_a_limit_is_kept_by_children_too(monkeypatch: pytest.MonkeyPatch) -> None:
    set_to: list[tuple[int, ...]] = []
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {3, 5, 9, 4})
    monkeypatch.setattr(os, "sched_setaffinity", lambda pid, cores: set_to.append((pid, *cores)))
    for limit in (0, 4, 9, 2):
        keep_within(limit)
    assert set_to == [(0, 3, 4)]
    monkeypatch.setattr(limits, "quota", lambda: 2.9)
    assert own_cores() == (3, 4) and own_cores(1) == (3,) and own_cores(9) == (3, 4)


def test_of_this_process() -> None:
    found = read_processor()
    assert found.cores == affinity() and 1 <= found.count <= max(1, len(found.cores) or found.count)
    assert found.memory > 0 and found.name


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


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="the system cannot pin threads")
def test_a_core_that_is_gone_ends_nothing(tmp_path: Path) -> None:
    before = os.sched_getaffinity(0)
    Worker(tmp_path / "cores", 1)
    threads: list[int] = []
    cores = LentCores(Loan(str(tmp_path / "cores"), 0, (100_000,), (100_001,)), threads.append)
    with cores.round():
        cores.settle(True)
    assert threads == [] and os.sched_getaffinity(0) == before


@pytest.mark.parametrize("other", [True, False])
def test_without_a_file_or_another_worker_nothing_is_lent(
    tmp_path: Path, pinned: list[tuple[int, ...]], other: bool
) -> None:
    path = tmp_path / "gone" / "cores" if other else tmp_path / "cores"
    sampler = Worker(path, 0)
    if other:
        Worker(path, 1).cores.rest()
    with sampler.cores.round():
        sampler.cores.settle(True)
    assert sampler.threads == [] and pinned == []


def test_what_torch_numpy_and_python_raise_counts() -> None:
    with pytest.raises(RuntimeError) as refused:
        torch.empty(1 << 60, dtype=torch.uint8)
    with pytest.raises(MemoryError) as refused_too:
        np.empty(1 << 60, np.uint8)
    assert ran_out(refused.value) and ran_out(refused_too.value)
    assert ran_out(torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB")) and ran_out(OutOfMemory("x"))
    assert not ran_out(RuntimeError("shapes differ")) and not ran_out(OSError("out of memory"))
    assert ran_out(RuntimeError("could not create a primitive")), "of oneDNN"
    assert ran_out(RuntimeError("could not execute a primitive"))
    unknown = "could not create a primitive descriptor for the matmul primitive. Run workload with …"
    assert not ran_out(RuntimeError(unknown)) and not ran_out(RuntimeError("could not create an engine"))


def test_only_a_shortage_becomes_out_of_memory() -> None:
    shortage = as_shortage(RuntimeError("CUDA out of memory"))
    assert isinstance(shortage, OutOfMemory) and str(shortage) == "RuntimeError: CUDA out of memory"
    other = CallFailed("A bug.")
    assert as_shortage(other) is other


@pytest.mark.processes
@pytest.mark.parametrize(("error", "status"), [("MemoryError()", STATUS), ("KeyError()", 1)])
def test_a_process_leaves_its_reason_and_whether_it_was_memory(error: str, status: int) -> None:
    program = f"from marlaas.engine.devices.limits import end_process; end_process('Why.\\nAt length.', {error})"
    done = subprocess.run([sys.executable, "-P", "-c", program], capture_output=True, text=True, timeout=30)
    assert (done.returncode, done.stderr) == (status, "Why.\n")
