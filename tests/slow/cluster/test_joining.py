"""`marlaas cluster` with the real Ray: two homes of one machine join, run an engine's tasks together, and leave.

Both use the loopback address with their own ports, so that nothing of the machine's networks is needed."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import pytest

from marlaas.engine.daemon import control
from marlaas.engine.home.paths import Home
from marlaas.engine.store.queries.machine import NodeRow, nodes as nodes_of
from marlaas.engine.store.queries.reader import Reader
from tests.end_to_end.conftest import Lab, consumed_once
from tests.slow.waiting import finished


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
    def address(self) -> str:
        """Where the head of its cluster listens."""
        return str(json.loads((self.home / "node.lock").read_text())["head"])

    @property
    def token(self) -> str:
        """The cluster's token, as its home has it."""
        return (self.home / "cluster.token").read_text()

    @property
    def ray(self) -> psutil.Process:
        return psutil.Process(json.loads((self.home / "node.lock").read_text())["pid"])


def machine(root: Path, name: str, more: str = "") -> Machine:
    """A home with ports that nobody has; ``more`` is further text of its settings, the first of it for [cluster]."""
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


def gone(processes: list[psutil.Process]) -> bool:
    _, alive = psutil.wait_procs(processes, timeout=60)
    return not alive


@pytest.mark.cluster
@pytest.mark.timeout(600)
def test_two_machines_join_and_leave(head: Machine, tmp_path: Path) -> None:
    other = machine(tmp_path, "other")
    bare = other("cluster", "join", head.address)
    assert bare.returncode == 2 and "no token of the cluster" in bare.stderr
    wrong = other("cluster", "join", head.address, "--token", "-", given="0" * 64)
    assert wrong.returncode == 3 and "does not accept this machine's token" in wrong.stderr
    assert not (other.home / "node.lock").exists(), "Ray was started"
    joined = other("cluster", "join", head.address, "--token", "-", "--name", "bob", given=head.token)
    assert joined.returncode == 0 and "bob has joined the cluster" in joined.stdout, joined.stderr
    try:
        assert head.nodes() == other.nodes() == {"ada": "ready", "bob": "ready"}
        assert "already" in other("cluster", "join", head.address).stderr
        third = machine(tmp_path, "third")
        refused = third("cluster", "join", head.address, "--token", "-", "--name", "bob", given=head.token)
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


@pytest.mark.cluster
@pytest.mark.timeout(600)
def test_a_cluster_without_a_token_is_refused(tmp_path: Path) -> None:
    open_ = machine(tmp_path, "open", "insecure = true\n")
    joined = open_("cluster", "join", "--ip", "127.0.0.1")
    assert joined.returncode == 0 and "whoever reaches 127.0.0.1 runs programs" in joined.stderr
    try:
        other = machine(tmp_path, "other")
        refused = other("cluster", "join", open_.address, "--token", "-", given="0" * 64)
        assert refused.returncode == 2 and "asks for no token" in refused.stderr
    finally:
        open_("cluster", "leave", "--force")


@pytest.mark.cluster
@pytest.mark.timeout(600)
def test_ray_listens_where_it_is_listed_and_a_killed_one_is_gone(head: Machine) -> None:
    """Every port at which Ray listens for other machines is the head's, or lies in the range that people give."""
    settings = dict(
        line.split(" = ") for line in (head.home / "marlaas.toml").read_text().splitlines() if line.startswith("port")
    )
    port, first = int(settings["port"]), int(settings["ports"])
    theirs = [head.ray, *head.ray.children(recursive=True)]
    ours = {each.pid for each in theirs}
    connections = [each for each in psutil.net_connections("tcp") if each.status == "LISTEN" and each.pid in ours]
    listens = {each.laddr.port for each in connections if each.laddr}
    assert port in listens and listens <= {port, *range(first, first + 100)}
    os.kill(head.ray.pid, signal.SIGKILL)
    forgot = head("cluster", "leave")
    assert forgot.returncode == 0 and "is forgotten" in forgot.stderr
    assert len(theirs) > 3 and gone(theirs)
    assert head("cluster", "status").returncode == 3


STEPS = 10
MANY = 100_000
"""Steps of a task that no machine is done with before the drain."""
TWO_CORES = "[resources]\ncores = 2\n"


@pytest.fixture
def lab(tmp_path: Path) -> Iterator[Lab]:
    """The home of the head, ``ada``, to which ``bob`` has joined."""
    with ExitStack() as leaving:
        head = machine(tmp_path, "head", TWO_CORES)
        joined = head("cluster", "join", "--ip", "127.0.0.1", "--name", "ada")
        assert joined.returncode == 0, joined.stderr
        leaving.callback(head, "cluster", "leave", "--force")
        other = machine(tmp_path, "other", TWO_CORES)  # only now: the head's ports are taken
        joined = other("cluster", "join", head.address, "--token", "-", "--name", "bob", given=head.token)
        assert joined.returncode == 0, joined.stderr
        leaving.callback(other, "cluster", "leave", "--force")
        rays = [head.ray, other.ray]
        lab = Lab(Home(head.home))
        control.ensure_running(lab.home)
        yield lab
        control.stop(lab.home)
        every = [*rays, *(child for ray in rays for child in ray.children(recursive=True))]
    _, alive = psutil.wait_procs(every, timeout=60)
    assert not alive, "something of the cluster lives on"


def nodes(lab: Lab) -> dict[str, NodeRow]:
    with Reader(lab.home.database) as reader:
        return {row.name: row for row in nodes_of(reader) if row.alive}


def until(lab: Lab, holds: Callable[[dict[str, NodeRow]], bool]) -> dict[str, NodeRow]:
    """Wait until something holds of the nodes."""
    deadline = time.monotonic() + 300
    while time.monotonic() < deadline:
        if holds(found := nodes(lab)):
            return found
        time.sleep(0.2)  # the engine is another process: there is nothing to await
    raise AssertionError(f"It is never so: {nodes(lab)}")


@pytest.mark.cluster
@pytest.mark.timeout(1800)
def test_tasks_go_over_two_machines_and_home_again(lab: Lab, tmp_path: Path) -> None:
    """Both are used at first; once bob is drained his workers move, and every task ends with all of its steps."""
    found = until(lab, lambda rows: "bob" in rows and any(row.workers for row in rows.values()))
    workers = [worker for row in found.values() for worker in row.workers]
    assert any(worker.startswith("rollout") for worker in workers)
    assert any(worker.startswith("training") for worker in workers)
    assert found["bob"].workers, f"Nothing is placed on the machine that joined: {found}"
    said = json.loads(lab.marlaas("engine", "status", "--json"))
    assert "bob" in json.dumps(said), "Nobody is told what runs where."
    tasks = [
        lab.submit("sums", "arithmetic", steps=STEPS, tenant="first"),
        lab.submit("guesses", "guess", steps=STEPS, tenant="second", train={"max_staleness": 1}),
        lab.submit("more sums", "arithmetic", steps=STEPS, tenant="second", train={"max_staleness": 0}),
    ]
    endless = lab.submit("endless", "arithmetic", steps=MANY, tenant="third")
    for task in (*tasks, endless):
        lab.until(task, 2)
    lab.marlaas("cluster", "drain", "bob")
    until(lab, lambda rows: rows["bob"].draining and not rows["bob"].workers and len(rows["ada"].workers) >= 2)
    lab.until(endless, lab.row(endless).step + 2)  # it goes on at the machine that is left
    lab.marlaas("cancel", str(endless))
    finished(lab, tasks)
    consumed_once(lab.home, endless)
    for task in tasks:
        assert lab.row(task).step == STEPS
        consumed_once(lab.home, task)
    lab.sound(*tasks, endless)
    for task in tasks:
        out = tmp_path / f"adapter-{task}"
        lab.marlaas("adapters", "export", str(task), "--out", str(out))
        assert (out / "adapter_config.json").exists() and (out / "adapter_model.safetensors").stat().st_size > 0
