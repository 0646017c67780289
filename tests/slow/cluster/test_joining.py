"""`marlaas cluster` with the real Ray: two homes of one machine join, leave, and are ended alone.

Both use the loopback address with ports of their own, so that nothing of the machine's networks is needed.
"""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.imaginary.cards import Card, imagine

from .machines import Machine, machine

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(600)]


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


def test_two_machines_join_and_leave(head: Machine, tmp_path: Path) -> None:
    other = machine(tmp_path, "other")
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


def test_a_node_joins_with_the_cards_that_others_leave(
    head: Machine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Half of its cards are taken: it says which, and why they stay untouched. The cards are imaginary ones."""
    other = machine(tmp_path, "other")
    with monkeypatch.context() as there:
        imagine(there, tmp_path).have(Card(), Card(used=12_300), Card(), Card(used=12_300))
        joined = other("cluster", "join", head.address, "--token", "-", "--name", "bob", given=head.token)
    assert joined.returncode == 0, joined.stderr
    try:
        started = head("engine", "start")
        assert started.returncode == 0, started.stderr
        until = time.monotonic() + 120
        bob: dict[str, Any] = {}
        while not bob.get("cards") and time.monotonic() < until:
            time.sleep(0.5)
            told = json.loads(head("cluster", "status", "--json").stdout)["nodes"]
            bob = next(node for node in told if node["name"] == "bob")
        assert [card.split()[1] for card in bob["cards"]] == ["0", "2"] and bob["state"] == "ready"
        assert [reason.partition(" is left alone")[0] for reason in bob["left_out"]] == ["gpu 1", "gpu 3"]
    finally:
        head("engine", "stop")
        other("cluster", "leave", "--force")


def test_nobody_joins_without_the_token(head: Machine, tmp_path: Path) -> None:
    other = machine(tmp_path, "other")
    bare = other("cluster", "join", head.address)
    assert bare.returncode == 2 and "no token of the cluster" in bare.stderr
    wrong = other("cluster", "join", head.address, "--token", "-", given="0" * 64)
    assert wrong.returncode == 3 and "does not accept this machine's token" in wrong.stderr
    assert not (other.home / "node.lock").exists(), "Ray was started"


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
