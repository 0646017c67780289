"""This machine's Ray, played by a small program: it starts once, holds the lock, and ends alone.

The real one is started in ``tests/cluster``.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from marlaas.engine.errors import ClusterUnreachable, ConfigError
from marlaas.engine.home.paths import Home
from marlaas.engine.home.settings import ClusterSettings
from marlaas.engine.machine.cluster import joining
from marlaas.engine.machine.cluster.joining import (
    LocalNode,
    check_ray,
    command,
    local_node,
    start_ray,
    stop_ray,
)

INSECURE = ClusterSettings(insecure=True)
NODE = LocalNode(0, "10.0.0.5:6379", True, "ada", "10.0.0.5")
RAY = """
import subprocess, sys, time
if {ends!r}:
    print("Traceback\\n  {ends}")
    sys.exit(1)
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
open("child", "w").write(str(child.pid))
if {speaks}:
    print("Ray runtime started.", flush=True)
try:
    time.sleep(600)
finally:
    child.kill()
"""


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Home]:
    home = Home(tmp_path / "home").create()
    monkeypatch.setattr(joining, "ray_folder", lambda home: home.root / "ray")
    monkeypatch.setattr(joining, "listening", set)
    yield home
    stop_ray(home, grace=0.0)


def play(monkeypatch: pytest.MonkeyPatch, ends: str = "", speaks: bool = True) -> None:
    program = RAY.format(ends=ends, speaks=speaks)
    monkeypatch.setattr(joining, "command", lambda *given: [sys.executable, "-c", program])


def test_it_starts_once_and_ends(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    play(monkeypatch)
    assert local_node(home) is None and not stop_ray(home)
    node = start_ray(home, INSECURE, NODE)
    assert local_node(home) == node and psutil.pid_exists(node.pid)
    with pytest.raises(ConfigError, match=r"in a cluster at 10\.0\.0\.5:6379 already") as refused:
        start_ray(home, INSECURE, NODE)
    assert "`marlaas cluster leave`" in refused.value.hint
    assert local_node(home) == node
    assert stop_ray(home) and local_node(home) is None
    again = start_ray(home, INSECURE, NODE)
    assert again.pid != node.pid


def test_nothing_starts_where_others_listen_at_its_ports(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    play(monkeypatch)
    monkeypatch.setattr(joining, "FREE_SECONDS", 0.0)
    monkeypatch.setattr(joining, "listening", lambda: {22, 6379, 6404})
    with pytest.raises(ConfigError, match="listens at ports 6379, 6404, which Ray needs") as refused:
        start_ray(home, INSECURE, NODE)
    assert "`port` and `ports`" in refused.value.hint and local_node(home) is None
    looks = iter(({6404}, {6404}, set[int]()))
    monkeypatch.setattr(joining, "FREE_SECONDS", 60.0)
    monkeypatch.setattr(joining, "listening", lambda: next(looks))
    assert start_ray(home, INSECURE, NODE).pid, "a Ray that has just ended frees its ports a moment later"


def test_other_peoples_ray_is_left_alone(home: Home, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    play(monkeypatch)
    other = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)", "raylet"])
    try:
        start_ray(home, INSECURE, NODE)
        stop_ray(home)
        assert other.poll() is None
    finally:
        other.kill()
        other.wait()


def test_a_killed_ray_is_gone(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    play(monkeypatch)
    node = start_ray(home, INSECURE, NODE)
    joining.started[node.pid].kill()
    joining.started.pop(node.pid).wait()
    child = psutil.Process(int((home.root / "child").read_text()))
    assert local_node(home) is None and child.is_running()
    assert not stop_ray(home)  # it sees off what the killed one has left behind
    psutil.wait_procs([child], timeout=50)
    assert not child.is_running() or child.status() == psutil.STATUS_ZOMBIE


def test_why_it_does_not_start_is_one_sentence(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    play(monkeypatch, ends="RuntimeError: Version mismatch: The cluster was started with")
    with pytest.raises(ConfigError, match=r"Ray did not start: the cluster runs another version of Python or Ray\."):
        start_ray(home, INSECURE, NODE)
    assert local_node(home) is None


def test_one_that_hangs_is_ended(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    play(monkeypatch, speaks=False)
    with pytest.raises(ClusterUnreachable, match=r"Ray did not start within 0\.5 s"):
        start_ray(home, INSECURE, NODE, seconds=0.5)
    assert local_node(home) is None


def test_the_command_line_names_everything() -> None:
    words = command(ClusterSettings(ports=7000), NODE, Path("/tmp/x"))
    assert {"--head", "--port=6379", "--block", "--include-dashboard=false", "--no-monitor"} <= {*words}
    assert {"--node-ip-address=10.0.0.5", "--node-name=ada", "--temp-dir=/tmp/x", "--node-manager-port=7000"} <= {
        *words
    }
    joins = command(ClusterSettings(), LocalNode(0, "[fd00::1]:6379", False, "bob", "fd00::2"), Path("/tmp/x"))
    assert "--address=[fd00::1]:6379" in joins and not any(
        word.startswith(("--head", "--port", "--include-d")) for word in joins
    )


def test_without_ray_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(joining, "find_spec", lambda name: None)
    with pytest.raises(ConfigError, match="Several machines need Ray, which is not installed") as refused:
        check_ray()
    assert "marlaas[cluster]" in refused.value.hint


def test_the_folder_is_short_and_ones_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    long = Home(tmp_path / ("x" * 100))
    monkeypatch.setattr("tempfile.gettempdir", lambda: str(tmp_path / ("y" * 100)))
    folder = joining.ray_folder(long)
    assert len(str(folder)) <= joining.LONGEST_FOLDER and folder != joining.ray_folder(Home(tmp_path / "other"))
