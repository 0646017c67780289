"""`marlaas cluster`: what is refused before Ray is asked, in one sentence each, and what is said of nodes."""

from __future__ import annotations

import fcntl
import json
import socket
import tomllib
from collections.abc import Callable, Iterator
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest

from marlaas.app.operations import cluster, commands
from marlaas.engine.daemon import control, lock
from marlaas.engine.home.paths import Home
from marlaas.engine.home.settings import ClusterSettings
from marlaas.engine.machine.cluster.joining import LocalNode, make_token
from marlaas.engine.machine.cluster.node import own_versions
from marlaas.engine.store.queries.machine import NodeRow
from marlaas.engine.store.store import Store

from ...commanding import Commander

HEAD = LocalNode(1, "10.0.0.5:6379", True, "ada", "10.0.0.5")
NODE = LocalNode(1, "10.0.0.5:6379", False, "bob", "10.0.0.6")
ADA = NodeRow(
    *("a1a1", "ada", "10.0.0.5", True, True, False, "", 16, 10**10),
    *(("gpu 0 H1",), ("gpu 1 is left alone: eve holds it.",), 0.25, "Python 3.12.3", ("rollout", "training"), 5.0),
)
BOB = replace(ADA, id="b2b2", name="bob", address="10.0.0.6", here=False, cards=(), left_out=(), workers=("rollout-2",))


@pytest.fixture(autouse=True)
def with_ray(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if Ray were installed; nothing here may start it."""
    monkeypatch.setattr("marlaas.engine.machine.cluster.joining.find_spec", lambda name: object())
    monkeypatch.setattr(cluster, "start_ray", lambda *given, **named: pytest.fail("Ray was started"))


@pytest.fixture
def running(home: Home) -> Iterator[Callable[[LocalNode], None]]:
    """Has this home's Ray run: the test holds its lock."""
    home.create()
    with open(home.node_lock, "w+") as held:

        def run(node: LocalNode) -> None:
            fcntl.flock(held, fcntl.LOCK_EX)
            held.seek(0)
            held.truncate()
            json.dump(asdict(node), held)
            held.flush()

        yield run


@pytest.fixture
def listening() -> Iterator[int]:
    """A port at which somebody listens."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server.getsockname()[1]


Answers = Callable[..., None]


@pytest.fixture
def answers(monkeypatch: pytest.MonkeyPatch) -> Answers:
    """What a head would say: to those with a token, and to those without."""

    def set_answers(told: dict[str, Any], alone: dict[str, Any] | None = None) -> None:
        def ask(what: str, address: str, environment: dict[str, str], *more: object) -> dict[str, Any]:
            return told if environment["RAY_AUTH_MODE"] == "token" else alone or {"failed": "token", "why": "no"}

        monkeypatch.setattr(cluster, "ask", ask)
        monkeypatch.setattr(cluster, "ask", ask)

    return set_answers


def test_without_ray_nothing_begins(marlaas: Commander, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("marlaas.engine.machine.cluster.joining.find_spec", lambda name: None)
    for words in (("join",), ("join", "127.0.0.1:1")):
        said = marlaas("cluster", *words)
        assert said.code == 2 and "Several machines need Ray, which is not installed." in said.err
        assert "pip install 'marlaas[cluster]'" in said.err


def test_an_address_where_nobody_listens_is_said(marlaas: Commander, listening: int) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    said = marlaas("cluster", "join", f"127.0.0.1:{port}")
    assert said.code == 3 and f"No Ray is at 127.0.0.1:{port}: connection refused." in said.err
    assert marlaas("cluster", "join", "a b").code == 2


def test_nobody_joins_twice(marlaas: Commander, running: Callable[[LocalNode], None]) -> None:
    running(NODE)
    for words in (("join",), ("join", "10.0.0.7:6379")):
        said = marlaas("cluster", *words)
        assert said.code == 2 and "This machine is in a cluster at 10.0.0.5:6379 already." in said.err


def test_a_token_is_needed_and_must_be_ones_own(marlaas: Commander, home: Home, listening: int, tmp_path: Path) -> None:
    address = f"127.0.0.1:{listening}"
    said = marlaas("cluster", "join", address)
    assert said.code == 2 and "This machine has no token of the cluster." in said.err
    said = marlaas("cluster", "join", address, "--token", str(tmp_path / "nowhere"))
    assert said.code == 2 and "The token cannot be read" in said.err
    (tmp_path / "two").write_text("two words")
    assert "What was given is no token." in marlaas("cluster", "join", address, "--token", str(tmp_path / "two")).err
    make_token(home, ClusterSettings()).chmod(0o644)
    assert "Others may read the cluster's token (mode 0644)." in marlaas("cluster", "join", address).err


@pytest.fixture
def joins(marlaas: Commander, home: Home, listening: int) -> Callable[..., Any]:
    make_token(home.create(), ClusterSettings())
    return lambda *more: marlaas("cluster", "join", f"127.0.0.1:{listening}", *more)


def test_what_the_head_refuses_is_said(joins: Callable[..., Any], answers: Answers) -> None:
    answers({"failed": "token", "why": "x"})
    said = joins()
    assert said.code == 3 and "does not accept this machine's token." in said.err
    answers({"failed": "time", "why": "no answer within 45 s"})
    said = joins()
    assert said.code == 3 and "is no head of a cluster: no answer within 45 s." in said.err


def test_a_cluster_that_lets_everybody_in_is_refused(joins: Callable[..., Any], answers: Answers) -> None:
    seen: dict[str, Any] = {"nodes": [], "record": {}}
    answers(seen, seen)
    said = joins()
    assert said.code == 2 and "asks for no token: whoever reaches it runs programs on its machines." in said.err
    assert "`insecure = true`" in said.err


def test_other_versions_are_named(joins: Callable[..., Any], answers: Answers) -> None:
    own = asdict(own_versions())
    answers({"nodes": [], "record": {"versions": own | {"python": "3.99.1", "torch": "1.0"}}})
    said = joins()
    assert said.code == 2 and "This machine cannot join: Python is 3.99.1 there and 3." in said.err
    assert "torch is 1.0 there" in said.err


def test_status_without_a_cluster_says_how_to_begin(marlaas: Commander) -> None:
    said = marlaas("cluster", "status")
    assert said.code == 3 and "this machine works alone" in said.out and "`marlaas cluster join`" in said.err
    said = marlaas("cluster", "status", "--json")
    assert said.code == 3 and said.json == {"address": None, "engine": False, "own": None, "nodes": []}


def store_nodes(home: Home, *rows: NodeRow) -> None:
    store = Store(home.database, "tiny")
    store.telemetry.nodes(rows)
    store.close()


@pytest.fixture
def known(home: Home, running: Callable[[LocalNode], None], monkeypatch: pytest.MonkeyPatch) -> Home:
    """A head whose engine knows two nodes."""
    running(HEAD)
    store_nodes(home, ADA, BOB)
    monkeypatch.setattr(control, "alive", lambda home: True)
    return home


def test_status_tells_what_the_engine_knows(marlaas: Commander, known: Home) -> None:
    said = marlaas("cluster", "status")
    assert said.code == 0
    assert "ada (here)  10.0.0.5  ready     16  10.0 GB  1 of 2  rollout, training" in said.out
    assert "gpu 1 is left alone: eve holds it." in said.out and "marlaas cluster join 10.0.0.5:6379" in said.err
    told = marlaas("cluster", "status", "--json").json
    assert [(node["name"], node["state"]) for node in told["nodes"]] == [("ada", "ready"), ("bob", "ready")]


def test_status_asks_the_head_where_no_engine_runs(
    marlaas: Commander, running: Callable[[LocalNode], None], home: Home, answers: Answers, listening: int
) -> None:
    make_token(home.create(), ClusterSettings())
    running(replace(NODE, head=f"127.0.0.1:{listening}"))
    seen = [{"id": "a", "name": "ada", "address": "10.0.0.5", "alive": True, "head": True}]
    seen += [{"id": "b", "name": "bob", "address": "10.0.0.6", "alive": False, "head": False}]
    answers({"nodes": seen, "record": {}})
    said = marlaas("cluster", "status")
    assert said.code == 0 and "ada         10.0.0.5  ready" in said.out and "bob (here)  10.0.0.6  gone" in said.out
    answers({"failed": "time", "why": "no answer within 45 s"})
    assert marlaas("cluster", "status").code == 3


Outcome = Callable[[str], None]


@pytest.fixture
def engine_says(monkeypatch: pytest.MonkeyPatch) -> Outcome:
    """An engine that runs and gives every command one outcome."""

    def says(outcome: str) -> None:
        monkeypatch.setattr(lock, "holder", lambda path: 1)
        monkeypatch.setattr(cluster, "holder", lambda path: 1)
        monkeypatch.setattr(commands, "holder", lambda path: 1)
        monkeypatch.setattr(commands, "wait_for_outcomes", lambda reader, sent: dict.fromkeys(sent, outcome))

    return says


def told(home: Home) -> list[tuple[str, dict[str, Any]]]:
    store = Store(home.database, "tiny")
    found = [(command.kind, command.arguments) for command in store.tasks.new_commands()]
    store.close()
    return found


def test_draining_is_told_to_the_engine(marlaas: Commander, known: Home, engine_says: Outcome) -> None:
    engine_says("")
    said = marlaas("cluster", "drain", "bob")
    assert said.code == 0 and "its workers move when the steps under way are committed" in said.err
    assert marlaas("cluster", "undrain", "b2b2").code == 0
    assert told(known) == [("drain_node", {"node": "bob"}), ("undrain_node", {"node": "bob"})]
    engine_says("bob is the only node that works.")
    said = marlaas("cluster", "drain", "bob")
    assert said.code == 2 and "bob is the only node that works." in said.err
    said = marlaas("cluster", "drain", "bop")
    assert said.code == 2 and "The cluster has no node 'bop'. Did you mean bob?" in said.err


def test_a_drain_waits_for_the_next_engine(marlaas: Commander, known: Home) -> None:
    said = marlaas("cluster", "drain", "bob")
    assert said.code == 0 and "No engine runs; the next one gives bob nothing." in said.err
    store_nodes(known, ADA, replace(BOB, alive=False))
    assert "ada is the only node that works" in marlaas("cluster", "drain", "ada").err


def test_without_an_engine_the_last_node_is_not_drained_either(
    marlaas: Commander, running: Callable[[LocalNode], None], home: Home, answers: Answers, listening: int
) -> None:
    make_token(home.create(), ClusterSettings())
    running(replace(HEAD, head=f"127.0.0.1:{listening}"))
    seen = [{"id": name, "name": name, "address": "10.0.0.5", "alive": True, "head": False} for name in ("ada", "bob")]
    answers({"nodes": seen, "record": {}})
    assert marlaas("cluster", "drain", "bob").code == 0
    assert "bob" in (shown := marlaas("cluster", "status").out) and "draining" in shown
    said = marlaas("cluster", "drain", "ada")
    assert said.code == 2 and "ada is the only node that works" in said.err
    assert marlaas("cluster", "undrain", "bob").code == 0
    assert marlaas("cluster", "drain", "ada").code == 0
    assert "bob is the only node that works" in marlaas("cluster", "drain", "bob").err


def test_nodes_are_drained_on_the_head(
    marlaas: Commander, home: Home, running: Callable[[LocalNode], None], answers: Answers, listening: int
) -> None:
    assert "This machine is in no cluster." in marlaas("cluster", "drain", "bob").err
    make_token(home.create(), ClusterSettings())
    running(replace(NODE, head=f"127.0.0.1:{listening}"))
    answers({"nodes": [], "record": {}})
    said = marlaas("cluster", "drain", "bob")
    assert said.code == 2 and "Nodes are drained where the engine runs." in said.err


def test_nobody_leaves_while_tasks_run(
    marlaas: Commander, known: Home, running: Callable[[LocalNode], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    said = marlaas("cluster", "leave")
    assert said.code == 2 and "The engine works over this cluster." in said.err and "--force" in said.err
    running(NODE)
    monkeypatch.setattr(cluster, "workers", lambda node: 2)
    said = marlaas("cluster", "leave")
    assert said.code == 2 and "2 of the engine's workers run on this machine." in said.err
    assert "`marlaas cluster drain bob`" in said.err
    stopped: list[Home] = []
    monkeypatch.setattr(cluster, "stop_ray", stopped.append)
    said = marlaas("cluster", "leave", "--force")
    assert said.code == 0 and stopped and "bob has left the cluster at 10.0.0.5:6379." in said.err


def test_a_cluster_that_is_gone_is_forgotten(marlaas: Commander, home: Home) -> None:
    home.create()
    assert marlaas("cluster", "leave").code == 2
    home.config.write_text('[cluster]\naddress = "10.0.0.5:6379"\n')
    said = marlaas("cluster", "leave")
    assert said.code == 0 and "the cluster at 10.0.0.5:6379 is forgotten" in said.err
    assert tomllib.loads(home.config.read_text())["cluster"]["address"] == ""
