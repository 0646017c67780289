"""`marlaas cluster` with the real Ray: two homes of one machine join, leave, and are ended alone.

Both use the loopback address with ports of their own, so that nothing of the machine's networks is needed.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import pytest

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(600)]


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])


def free_range() -> int:
    """The first of a hundred ports of which none is taken, below those that the system gives away."""
    for first in range(12_000, 32_000, 100):
        taken = {each.laddr.port for each in psutil.net_connections("tcp") if each.laddr}
        if not taken & set(range(first, first + 100)):
            return first
    raise AssertionError("no ports are free")


@dataclass(frozen=True)
class Machine:
    """A home with its own Ray."""

    home: Path

    def __call__(self, *words: str, given: str = "") -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-P", "-m", "marlaas.app.cli.main", *words],
            input=given,
            capture_output=True,
            text=True,
            env=os.environ | {"MARLAAS_HOME": str(self.home), "COLUMNS": "200"},
            timeout=300,
            check=False,
        )

    def nodes(self) -> dict[str, str]:
        """States of the nodes by name, as `status` tells them."""
        told: dict[str, Any] = json.loads(self("cluster", "status", "--json").stdout)
        return {node["name"]: node["state"] for node in told["nodes"]}

    @property
    def ray(self) -> psutil.Process:
        return psutil.Process(json.loads((self.home / "node.lock").read_text())["pid"])


def machine(root: Path, name: str, more: str = "") -> Machine:
    made = Machine(root / name)
    made.home.mkdir(parents=True)
    port, ports = free_port(), free_range()
    (made.home / "marlaas.toml").write_text(f"[cluster]\nport = {port}\nports = {ports}\n{more}")
    return made


@pytest.fixture
def head(tmp_path: Path) -> Iterator[Machine]:
    made = machine(tmp_path, "head")
    joined = made("cluster", "join", "--ip", "127.0.0.1", "--name", "ada")
    assert joined.returncode == 0, joined.stderr
    yield made
    made("cluster", "leave", "--force")


def address(head: Machine) -> str:
    return str(json.loads((head.home / "node.lock").read_text())["head"])


def token(head: Machine) -> str:
    return (head.home / "cluster.token").read_text()


def gone(processes: list[psutil.Process]) -> bool:
    _, alive = psutil.wait_procs(processes, timeout=60)
    return not alive


def test_two_machines_join_and_leave(head: Machine, tmp_path: Path) -> None:
    other = machine(tmp_path, "other")
    joined = other("cluster", "join", address(head), "--token", "-", "--name", "bob", given=token(head))
    assert joined.returncode == 0 and "bob has joined the cluster" in joined.stdout, joined.stderr
    try:
        assert head.nodes() == other.nodes() == {"ada": "ready", "bob": "ready"}
        assert "already" in other("cluster", "join", address(head)).stderr
        third = machine(tmp_path, "third")
        refused = third("cluster", "join", address(head), "--token", "-", "--name", "bob", given=token(head))
        assert refused.returncode == 2 and "has a node 'bob' already" in refused.stderr
        theirs = [other.ray, *other.ray.children(recursive=True)]
        left = other("cluster", "leave")
        assert left.returncode == 0 and gone(theirs), left.stderr
        assert head.ray.is_running(), "the Ray of another home was ended"
    finally:
        other("cluster", "leave", "--force")
    until = time.monotonic() + 60
    while head.nodes()["bob"] != "gone" and time.monotonic() < until:
        time.sleep(0.5)
    assert head.nodes() == {"ada": "ready", "bob": "gone"}


def test_nobody_joins_without_the_token(head: Machine, tmp_path: Path) -> None:
    other = machine(tmp_path, "other")
    bare = other("cluster", "join", address(head))
    assert bare.returncode == 2 and "no token of the cluster" in bare.stderr
    wrong = other("cluster", "join", address(head), "--token", "-", given="0" * 64)
    assert wrong.returncode == 3 and "does not accept this machine's token" in wrong.stderr
    assert not (other.home / "node.lock").exists(), "Ray was started"


def test_a_cluster_without_a_token_is_refused(tmp_path: Path) -> None:
    open_ = machine(tmp_path, "open", "insecure = true\n")
    joined = open_("cluster", "join", "--ip", "127.0.0.1")
    assert joined.returncode == 0 and "whoever reaches 127.0.0.1 runs programs" in joined.stderr
    try:
        other = machine(tmp_path, "other")
        refused = other("cluster", "join", address(open_), "--token", "-", given="0" * 64)
        assert refused.returncode == 2 and "asks for no token" in refused.stderr
    finally:
        open_("cluster", "leave", "--force")


def test_a_killed_ray_leaves_nothing_behind(head: Machine) -> None:
    theirs = [head.ray, *head.ray.children(recursive=True)]
    assert len(theirs) > 3
    os.kill(head.ray.pid, signal.SIGKILL)
    forgot = head("cluster", "leave")
    assert forgot.returncode == 0 and "is forgotten" in forgot.stderr
    assert gone(theirs)
    assert head("cluster", "status").returncode == 3


def test_only_what_is_listed_is_open(head: Machine) -> None:
    """Every port at which Ray listens for other machines is the head's, or lies in the range that people give."""
    settings = dict(
        line.split(" = ") for line in (head.home / "marlaas.toml").read_text().splitlines() if line.startswith("port")
    )
    port, first = int(settings["port"]), int(settings["ports"])
    ours = {each.pid for each in [head.ray, *head.ray.children(recursive=True)]}
    connections = [each for each in psutil.net_connections("tcp") if each.status == "LISTEN" and each.pid in ours]
    listens = {each.laddr.port for each in connections if each.laddr}
    assert port in listens and listens <= {port, *range(first, first + 100)}
