"""Cores and quotas, read from trees like those that Linux shows."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import example, given, strategies as st

from marlaas.engine.devices import limits
from marlaas.engine.devices.limits import Group, affinity, keep_within, own_cores, quota, read_processor, whole


def write(folder: Path, **files: object) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in files.items():
        (folder / name.replace("__", ".")).write_text(f"{text}\n")


def member(folder: Path, text: str) -> Path:
    path = folder / "membership"
    path.write_text(text)
    return path


def test_version_2_leaves_the_least_on_the_way_up(tmp_path: Path) -> None:
    mounted = tmp_path / "mounted"
    write(mounted / "a", cpu__max="150000 100000")
    write(mounted / "a" / "b", cpu__max="max 100000")
    write(mounted / "a" / "b" / "c", cpu__max="800000 200000")
    assert quota(member(tmp_path, "0::/a/b/c\n"), mounted) == 1.5
    assert quota(member(tmp_path, "0::/\n"), mounted) is None


def test_version_1_says_no_quota_by_minus_one(tmp_path: Path) -> None:
    mounted = tmp_path / "mounted"
    write(mounted / "cpu", cpu__cfs_quota_us=-1, cpu__cfs_period_us=100000)
    write(mounted / "cpu" / "x", cpu__cfs_quota_us=250000, cpu__cfs_period_us=100000)
    assert quota(member(tmp_path, "4:cpu,cpuacct:/x\n0::/\n"), mounted) == 2.5
    assert quota(member(tmp_path, "4:cpu,cpuacct:/\n"), mounted) is None
    assert quota(member(tmp_path, "4:cpuset:/x\n"), mounted) is None


@pytest.mark.parametrize(
    ("count", "worth", "cores"), [(8, None, 8), (8, 2.5, 2), (8, 0.3, 1), (2, 64.0, 2), (1, None, 1)]
)
def test_whole_cores(count: int, worth: float | None, cores: int) -> None:
    assert whole(count, worth) == cores


@given(st.text(max_size=30), st.integers(1, 10**9), st.integers(1, 10**9))
@example("0\x1f", 1, 1)
def test_any_text_is_a_quota_above_nothing_or_none(text: str, spent: int, period: int) -> None:
    class Told(Group):
        def read(self, name: str) -> str:
            return text

    for version in (1, 2):
        worth = limits.quota_of(Told(Path("/"), version))
        assert worth is None or worth > 0
    text = f"{spent} {period}\n"
    assert limits.quota_of(Told(Path("/"), 2)) == spent / period


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
