"""What containers and limits leave, read from trees like those that Linux shows."""

import resource
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings, strategies as st

from marlaas.engine.devices.limits import available_memory, container_room

V1 = ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")
V2 = ("memory.max", "memory.current", "inactive_file")


def group(folder: Path, names: tuple[str, str, str], limit: object, usage: int, cached: int) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / names[0]).write_text(f"{limit}\n")
    (folder / names[1]).write_text(f"{usage}\n")
    (folder / "memory.stat").write_text(f"anon 5\n{names[2]} {cached}\nslab 9\n")


def membership(folder: Path, text: str) -> Path:
    path = folder / "cgroup"
    path.write_text(text)
    return path


def test_version_2_leaves_the_least_on_the_way_up(tmp_path: Path) -> None:
    mounted = tmp_path / "mounted"
    group(mounted / "a", V2, 1000, 600, 50)
    group(mounted / "a" / "b", V2, "max", 500, 0)
    group(mounted / "a" / "b" / "c", V2, 900, 300, 100)
    assert container_room(membership(tmp_path, "0::/a/b/c\n"), mounted) == 450
    assert container_room(membership(tmp_path, "0::/a/b\n"), mounted) == 450
    assert container_room(membership(tmp_path, "0::/\n"), mounted) is None


def test_version_1_says_no_limit_by_a_large_number(tmp_path: Path) -> None:
    mounted = tmp_path / "mounted"
    group(mounted / "memory", V1, 9223372036854771712, 10, 0)
    group(mounted / "memory" / "x", V1, 2000, 1500, 200)
    lines = "5:devices:/\n4:cpu,memory:/x/gone\n0::/\n"
    assert container_room(membership(tmp_path, lines), mounted) == 700
    assert container_room(membership(tmp_path, "4:memory:/\n"), mounted) is None


def test_a_container_seen_as_the_root_knows_its_limit(tmp_path: Path) -> None:
    mounted = tmp_path / "mounted"
    group(mounted, V2, 5000, 1000, 0)
    assert container_room(membership(tmp_path, "0::/docker/0123\n"), mounted) == 4000
    assert container_room(membership(tmp_path, "0::/../../other\n"), mounted) == 4000


def test_where_nothing_is_shown_nothing_limits(tmp_path: Path) -> None:
    assert container_room(tmp_path / "missing", tmp_path) is None
    (tmp_path / "memory.max").write_text("many")
    assert container_room(membership(tmp_path, "nonsense\n0::/\n"), tmp_path) is None


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.integers(0, 2**50), st.integers(0, 2**50), st.integers(0, 2**50))
def test_room_is_never_negative_and_grows_with_the_limit(tmp_path: Path, limit: int, usage: int, cached: int) -> None:
    group(tmp_path / "m", V2, limit, usage, cached)
    room = container_room(membership(tmp_path, "0::/\n"), tmp_path / "m")
    assert room == max(0, limit - usage + cached)


def test_the_machine_bounds_everything(monkeypatch: pytest.MonkeyPatch) -> None:
    assert 0 < available_memory() < 1 << 50
    monkeypatch.setattr(resource, "getrlimit", lambda _: (12_345, 99_999))
    assert available_memory() == 12_345
