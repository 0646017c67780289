"""The verbs of a cluster, and how an engine yields its machine."""

from __future__ import annotations

import fcntl
import json
import socket
import time
import tomllib
from collections.abc import Callable, Iterator
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest

from marlaas.app.operations import cluster
from marlaas.engine.daemon import control
from marlaas.engine.errors import EngineUnreachable
from marlaas.engine.home.paths import Home
from marlaas.engine.home.settings import ClusterSettings
from marlaas.engine.machine.cluster.joining import LocalNode, make_token
from marlaas.engine.machine.cluster.node import own_versions
from marlaas.engine.store.queries.machine import NodeRow
from marlaas.engine.store.store import Store

from ..commanding import Commander
from ..filling import Filling
from .conftest import Outcome, commands_of

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
    monkeypatch.setattr(cluster, "find_spec", lambda name: object())
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

    return set_answers


def test_without_ray_nothing_begins(marlaas: Commander, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("marlaas.engine.machine.cluster.joining.find_spec", lambda name: None)
    for words in (("join",), ("join", "127.0.0.1:1")):
        said = marlaas("cluster", *words)
        assert said.code == 2 and "Several machines need Ray, which is not installed." in said.err
        assert "pip install 'marlaas[cluster]'" in said.err


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


def test_without_a_cluster_each_verb_says_so(marlaas: Commander) -> None:
    said = marlaas("cluster", "status")
    assert said.code == 3 and "this machine works alone" in said.out and "`marlaas cluster join`" in said.err
    assert "This machine is in no cluster." in marlaas("cluster", "drain", "bob").err
    assert "'long' is no span of time" in marlaas("engine", "yield", "--for", "long").err


def test_other_versions_are_named(joins: Callable[..., Any], answers: Answers) -> None:
    own = asdict(own_versions())
    answers({"nodes": [], "record": {"versions": own | {"python": "3.99.1", "torch": "1.0"}}})
    said = joins()
    assert said.code == 2 and "This machine cannot join: Python is 3.99.1 there and 3." in said.err
    assert "torch is 1.0 there" in said.err


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


def test_draining_is_told_to_the_engine(marlaas: Commander, known: Home, outcome: Outcome) -> None:
    outcome("")
    said = marlaas("cluster", "drain", "bob")
    assert said.code == 0 and "its workers move when the steps under way are committed" in said.err
    assert marlaas("cluster", "undrain", "b2b2").code == 0
    assert commands_of(known) == [("drain_node", None, {"node": "bob"}), ("undrain_node", None, {"node": "bob"})]
    outcome("bob is the only node that works.")
    said = marlaas("cluster", "drain", "bob")
    assert said.code == 2 and "bob is the only node that works." in said.err
    said = marlaas("cluster", "drain", "bop")
    assert said.code == 2 and "The cluster has no node 'bop'. Did you mean bob?" in said.err


def test_nobody_leaves_while_tasks_run(
    marlaas: Commander, known: Home, running: Callable[[LocalNode], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    said = marlaas("cluster", "leave")
    assert said.code == 2 and "The engine works over this cluster." in said.err and "--force" in said.err
    running(NODE)
    assert "This machine is in a cluster at 10.0.0.5:6379 already." in marlaas("cluster", "join").err
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


SAID = "Nothing answers at 10.0.0.5:6379 within 3 s. This machine goes on alone."


def test_a_cluster_that_does_not_answer_is_told(
    home: Home, marlaas: Commander, monkeypatch: pytest.MonkeyPatch
) -> None:
    filling = Filling(home.database, time.time())
    filling.insert("events", level="warning", kind="node", message="of the engine before", created=0.0)
    home.config.write_text('[cluster]\naddress = "10.0.0.5:6379"\n')

    def starts(*given: object, **named: object) -> None:
        filling.engine()
        filling.insert("events", level="info", kind="node", message="no warning", created=time.time())
        for message in (SAID, "another of the monitor's"):
            filling.insert("events", level="warning", kind="node", message=message, created=time.time())

    monkeypatch.setattr(control, "ensure_running", starts)
    started = marlaas("engine", "start")
    assert started.code == 0 and SAID in started.err and "before" not in started.err and "another" not in started.err
    silent = "cluster 10.0.0.5:6379 does not answer: this machine works alone"
    assert silent in marlaas("engine", "status").out
    home.config.write_text("")
    assert "does not answer" not in marlaas("engine", "status").out


def test_an_engine_that_runs_yields_at_once(home: Home, marlaas: Commander, outcome: Outcome) -> None:
    outcome("")
    said = marlaas("engine", "yield", "--for", "1h30m")
    assert said.code == 0 and "has yielded the machine until" in said.err and "`marlaas engine resume`" in said.err
    ((kind, _, arguments),) = commands_of(home)
    assert kind == "yield" and abs((arguments["until"] or 0) - time.time() - 5400) < 60
    assert marlaas("engine", "yield").code == 0 and commands_of(home)[-1] == ("yield", None, {"until": None})
    said = marlaas("engine", "resume")
    assert said.code == 0 and "tasks go on" in said.err and commands_of(home)[-1] == ("resume_engine", None, {})
    Filling(home.database, time.time()).engine()
    Filling(home.database).execute("UPDATE engines SET rest = 'hours', rest_until = 7.5")
    assert "outside of active hours until" in marlaas("engine", "resume").err


def test_what_the_engine_refuses_is_said(marlaas: Commander, outcome: Outcome) -> None:
    outcome("It is outside of its active hours.")
    for verb in ("yield", "resume"):
        said = marlaas("engine", verb)
        assert said.code == 2 and "outside of its active hours" in said.err
    outcome("silence")
    said = marlaas("engine", "yield")
    assert said.code == EngineUnreachable.exit_code and "has not answered within 30 s" in said.err


def test_the_next_engine_hears_of_it_where_none_runs(home: Home, marlaas: Commander) -> None:
    said = marlaas("engine", "yield", "--for", "2h")
    assert said.code == 0 and "No engine serves" in said.err and "The next one begins yielded until" in said.err
    said = marlaas("engine", "resume")
    assert said.code == 0 and "the next one yields nothing" in said.err
    assert [kind for kind, *_ in commands_of(home)] == ["yield", "resume_engine"]


@pytest.mark.parametrize(
    ("rest", "word", "sentence"),
    [
        ("yielded", "yielded until", "cards and memory are free, and tasks wait"),
        ("idle", "alive", "the next task starts the workers"),
    ],
)
def test_the_state_of_the_engine_tells_of_yielding(
    home: Home, marlaas: Commander, monkeypatch: pytest.MonkeyPatch, rest: str, word: str, sentence: str
) -> None:
    filling, until = Filling(home.database, time.time()), time.time() + 3600
    filling.engine()
    filling.execute("UPDATE engines SET rest = ?, rest_until = ?", rest, until)
    said = marlaas("engine", "status")
    assert said.code == 0 and f"engine  {word}" in said.out and sentence in said.out
    shown = json.loads(marlaas("engine", "status", "--json").out)
    assert shown["rest"] == {"kind": rest, "until": until} and shown["alive"]
    monkeypatch.setattr(control, "ensure_running", lambda *_, **__: None)
    assert (sentence in marlaas("engine", "start").err) == (rest != "idle")


SET = ClusterSettings(address="10.0.0.5:6379")


def test_doctor_says_how_a_cluster_stands(home: Home, running: Callable[[LocalNode], None]) -> None:
    make_token(home, SET)
    verdict, value, advice = cluster.standing(home, SET)
    assert verdict == "missing" and value.startswith("10.0.0.5:6379 is set") and "`marlaas cluster leave`" in advice
    assert cluster.standing(home, replace(SET, address="auto"))[0] == "ok"
    running(HEAD)
    assert cluster.standing(home, SET) == ("ok", "in that at 10.0.0.5:6379, its head", "")
    verdict, _, advice = cluster.standing(home, replace(SET, insecure=True))
    assert verdict == "note" and "whoever reaches its ports" in advice


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
    assert "Nodes are drained where the engine runs." in marlaas("cluster", "drain", "bob").err
    answers({"failed": "time", "why": "no answer within 45 s"})
    assert marlaas("cluster", "status").code == 3
