"""Joining a cluster: addresses, ports, the token, and this machine's Ray, for which a small program stands.

The real one is started in ``tests/slow/cluster``."""

from __future__ import annotations

import re
import socket
import stat
import subprocess
import sys
import time
from collections import namedtuple
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil
import pytest
from hypothesis import example, given, settings, strategies as st

from marlaas.engine.errors import ClusterUnreachable, ConfigError, WorkerDied
from marlaas.engine.home.paths import Home
from marlaas.engine.home.settings import PORTS, ClusterSettings
from marlaas.engine.machine.cluster import joining
from marlaas.engine.machine.cluster.cluster import Cluster
from marlaas.engine.machine.cluster.joining import (
    MARK,
    Address,
    LocalNode,
    address_towards,
    answer_in,
    ask,
    check_listens,
    check_ray,
    keep_token,
    listed_ports,
    local_node,
    make_token,
    own_address,
    own_addresses,
    parse_address,
    port_flags,
    ray_environment,
    start_ray,
    stop_ray,
)
from marlaas.engine.machine.workers.handle import LocalLauncher
from tests.examples import examples

Network = namedtuple("Network", "address family")
State = namedtuple("State", "isup")


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("10.0.0.5", Address("10.0.0.5", 6379)),
        ("10.0.0.5:7000", Address("10.0.0.5", 7000)),
        (" ada.example.org:1 ", Address("ada.example.org", 1)),
        ("[fd00::1]:7000", Address("fd00::1", 7000)),
        ("[fd00::1]", Address("fd00::1", 6379)),
        ("fd00::1", Address("fd00::1", 6379)),
    ],
)
def test_addresses_are_read(text: str, address: Address) -> None:
    assert parse_address(text, 6379) == address
    assert parse_address(str(address), 1) == address


@given(st.text(max_size=12))
@example("")
@example(":6379")
@example("a:b")
@example("a:0")
@example("a:70000")
@example("ray://a:1")
@example("me@a:1")
@example("a\x1b:1")
@example("²:²")
def test_any_text_is_an_address_or_refused(text: str) -> None:
    try:
        address = parse_address(text, 6379)
    except ConfigError as error:
        assert "is no address" in error.message
        return
    assert parse_address(str(address), 1) == address and 0 < address.port < 65536 and address.host.isprintable()


def test_who_listens_is_known_at_once() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        check_listens(Address("127.0.0.1", port))
    begun = time.monotonic()
    with pytest.raises(ClusterUnreachable, match=rf"No Ray is at 127.0.0.1:{port}: connection refused"):
        check_listens(Address("127.0.0.1", port))
    assert time.monotonic() - begun < 2.0


@pytest.mark.parametrize(
    ("host", "error", "words"),
    [
        ("10.0.0.5", TimeoutError(), r"Nothing answers at 10\.0\.0\.5:6379 within 3 s"),
        ("ada", socket.gaierror(-2, "Name or service not known"), "No machine is called 'ada'"),
    ],
)
def test_who_does_not_answer_is_not_waited_for_long(
    monkeypatch: pytest.MonkeyPatch, host: str, error: OSError, words: str
) -> None:
    asked: list[float] = []

    def connect(address: tuple[str, int], timeout: float) -> socket.socket:
        asked.append(timeout)
        raise error

    monkeypatch.setattr(socket, "create_connection", connect)
    with pytest.raises(ClusterUnreachable, match=words):
        check_listens(Address(host, 6379))
    assert asked == [3.0] and address_towards(Address("127.0.0.1", 6379)) == "127.0.0.1"


def networks(monkeypatch: pytest.MonkeyPatch, **addresses: str) -> None:
    found = {name.replace("_", "-"): [Network(address, socket.AF_INET)] for name, address in addresses.items()}
    monkeypatch.setattr(psutil, "net_if_addrs", lambda: found)
    monkeypatch.setattr(psutil, "net_if_stats", lambda: {name: State(not name.startswith("off")) for name in found})


def test_the_only_network_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    networks(monkeypatch, lo="127.0.0.1", eth0="10.0.0.5", docker0="172.17.0.1", off0="10.1.0.1", wlan="169.254.1.1")
    assert own_address() == "10.0.0.5"
    assert own_addresses() == [("10.0.0.5", "eth0"), ("172.17.0.1", "docker0")]
    assert own_address("172.17.0.1") == "172.17.0.1" and own_address("127.0.0.1") == "127.0.0.1"
    networks(monkeypatch, lo="127.0.0.1", docker0="172.17.0.1")
    assert own_address() == "172.17.0.1"


def test_of_several_networks_none_is_guessed(monkeypatch: pytest.MonkeyPatch) -> None:
    networks(monkeypatch, eth0="10.0.0.5", ib0="10.9.0.5")
    with pytest.raises(ConfigError, match=r"several addresses: 10\.0\.0\.5 \(eth0\), 10\.9\.0\.5 \(ib0\)"):
        own_address()
    with pytest.raises(ConfigError, match=r"10\.0\.0\.6 is no address of this machine"):
        own_address("10.0.0.6")
    networks(monkeypatch, lo="127.0.0.1")
    with pytest.raises(ConfigError, match="on no network") as refused:
        own_address()
    assert "--ip 127.0.0.1" in refused.value.hint


@settings(max_examples=examples())
@given(st.integers(1024, 65536 - PORTS))
def test_every_port_lies_in_the_range_once(first: int) -> None:
    ports = [int(flag.rpartition("=")[2]) for flag in port_flags(first)] + [first + joining.FIGURES]
    assert len(set(ports)) == len(ports)
    assert all(first <= port < first + PORTS for port in ports)
    lists = [tuple(map(int, re.findall(r"\d+", number))) for number, _ in listed_ports(6379, first)]
    assert lists[0] == (6379,) and {port for row in lists[1:] for port in row} == set(ports)


def test_every_kind_of_port_that_ray_opens_is_named() -> None:
    """What ``ray start --help`` of Ray 2.60 lists, but for the head's and those of what is switched off."""
    assert {flag.partition("=")[0] for flag in port_flags(6400)} == {
        "--node-manager-port",
        "--object-manager-port",
        "--runtime-env-agent-port",
        "--dashboard-agent-grpc-port",
        "--dashboard-agent-listen-port",
        "--metrics-export-port",
        "--min-worker-port",
        "--max-worker-port",
    }


PLAIN = ClusterSettings()


@pytest.fixture
def home(tmp_path: Path) -> Home:
    return Home(tmp_path / "home").create()


def test_a_new_token_is_kept_from_others(home: Home) -> None:
    with pytest.raises(ConfigError, match="This machine has no token of the cluster"):
        ray_environment(home, PLAIN)
    path = make_token(home, PLAIN)
    assert path == home.root / "cluster.token" and stat.S_IMODE(path.stat().st_mode) == 0o600
    token = path.read_text()
    assert len(token) == 64 and make_token(home, PLAIN).read_text() == token
    other = Home(home.root.with_name("other")).create()
    assert make_token(other, PLAIN).read_text() != token


def test_the_token_is_told_to_ray(home: Home) -> None:
    for token in ("replaced", "one-word\n"):
        keep_token(home.root / "elsewhere", token)
    assert not list(home.root.glob(".elsewhere*"))
    environment = ray_environment(home, replace(PLAIN, token=str(home.root / "elsewhere")))
    assert environment["RAY_AUTH_MODE"] == "token"
    assert Path(environment["RAY_AUTH_TOKEN_PATH"]).read_text() == "one-word"
    assert environment["RAY_AUTH_TOKEN"] == "", "one that stands for another cluster would come first"
    assert environment["MARLAAS_HOME"] == str(home.root)


@pytest.mark.parametrize("token", [" \n", "two words", "a\x1b[2J", "x" * 5000])
def test_what_is_no_token_is_not_kept(home: Home, token: str) -> None:
    with pytest.raises(ConfigError, match="no token"):
        keep_token(home.root / "t", token)
    assert not (home.root / "t").exists()


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
def ray_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Home]:
    home = Home(tmp_path / "ray_home").create()
    monkeypatch.setattr(joining, "ray_folder", lambda home: home.root / "ray")
    monkeypatch.setattr(joining, "listening", set)
    yield home
    stop_ray(home, grace=0.0)


def play(monkeypatch: pytest.MonkeyPatch, ends: str = "", speaks: bool = True) -> None:
    program = RAY.format(ends=ends, speaks=speaks)
    monkeypatch.setattr(joining, "command", lambda *given: [sys.executable, "-c", program])


def test_it_starts_once_and_ends(ray_home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    play(monkeypatch)
    assert local_node(ray_home) is None and not stop_ray(ray_home)
    with subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)", "raylet"]) as other:
        node = start_ray(ray_home, INSECURE, NODE)
        assert local_node(ray_home) == node and psutil.pid_exists(node.pid)
        with pytest.raises(ConfigError, match=r"in a cluster at 10\.0\.0\.5:6379 already") as refused:
            start_ray(ray_home, INSECURE, NODE)
        assert "`marlaas cluster leave`" in refused.value.hint
        assert local_node(ray_home) == node
        assert stop_ray(ray_home) and local_node(ray_home) is None
        assert other.poll() is None, "the Ray of other people is left alone"
        other.kill()
    again = start_ray(ray_home, INSECURE, NODE)
    assert again.pid != node.pid


def test_nothing_starts_where_others_listen_at_its_ports(ray_home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    play(monkeypatch)
    monkeypatch.setattr(joining, "FREE_SECONDS", 0.0)
    monkeypatch.setattr(joining, "listening", lambda: {22, 6379, 6404})
    with pytest.raises(ConfigError, match="listens at ports 6379, 6404, which Ray needs") as refused:
        start_ray(ray_home, INSECURE, NODE)
    assert "`port` and `ports`" in refused.value.hint and local_node(ray_home) is None
    looks = iter(({6404}, {6404}, set[int]()))
    monkeypatch.setattr(joining, "FREE_SECONDS", 60.0)
    monkeypatch.setattr(joining, "listening", lambda: next(looks))
    assert start_ray(ray_home, INSECURE, NODE).pid, "a Ray that has just ended frees its ports a moment later"


def test_a_killed_ray_is_gone(ray_home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    play(monkeypatch)
    node = start_ray(ray_home, INSECURE, NODE)
    joining.started[node.pid].kill()
    joining.started.pop(node.pid).wait()
    child = psutil.Process(int((ray_home.root / "child").read_text()))
    assert local_node(ray_home) is None and child.is_running()
    assert not stop_ray(ray_home)  # it sees off what the killed one has left behind
    psutil.wait_procs([child], timeout=50)
    assert not child.is_running() or child.status() == psutil.STATUS_ZOMBIE


@pytest.mark.parametrize(
    ("ends", "error", "words"),
    [
        (
            "RuntimeError: Version mismatch: The cluster was started with",
            ConfigError,
            r"Ray did not start: the cluster runs another version of Python or Ray\.",
        ),
        ("", ClusterUnreachable, r"Ray did not start within 0\.5 s"),
    ],
    ids=["it ends", "it hangs"],
)
def test_why_it_does_not_start_is_one_sentence(
    ray_home: Home, monkeypatch: pytest.MonkeyPatch, ends: str, error: type[Exception], words: str
) -> None:
    play(monkeypatch, ends=ends, speaks=False)
    with pytest.raises(error, match=words):
        start_ray(ray_home, INSECURE, NODE, seconds=30.0 if ends else 0.5)
    assert local_node(ray_home) is None
    monkeypatch.setattr(joining, "find_spec", lambda name: None)
    with pytest.raises(ConfigError, match="Several machines need Ray, which is not installed") as refused:
        check_ray()
    assert "marlaas[cluster]" in refused.value.hint


def test_the_folder_is_short_and_ones_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    long = Home(tmp_path / ("x" * 100))
    monkeypatch.setattr("tempfile.gettempdir", lambda: str(tmp_path / ("y" * 100)))
    folder = joining.ray_folder(long)
    assert len(str(folder)) <= joining.LONGEST_FOLDER and folder != joining.ray_folder(Home(tmp_path / "other"))


def test_the_answer_is_found_among_other_words() -> None:
    said = f"a warning of Ray's\n\n{MARK}" + '{"nodes": []}\nlast words\n'
    assert answer_in(said, 0) == {"nodes": []}
    assert answer_in(f"{MARK}[1]", 0)["failed"] == "other" and answer_in("", -9)["why"] == "status -9"
    assert answer_in("x\nInvalidAuthToken\n", 1)["failed"] == "token"


def test_nobody_is_waited_for_longer_than_asked(monkeypatch: pytest.MonkeyPatch, tmp_path: object) -> None:
    monkeypatch.setattr(sys, "executable", "/bin/sh")  # `sh -P …` ends at once; a program that is not there raises
    assert ask("look", "127.0.0.1:1", {}, seconds=5.0)["failed"] == "other"
    monkeypatch.setattr(sys, "executable", "/nowhere/python")
    begun = time.monotonic()
    assert ask("look", "127.0.0.1:1", {})["failed"] == "other" and time.monotonic() - begun < 5.0


async def test_where_nobody_listens_no_bridge_is_started(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ray would try for half a minute."""
    monkeypatch.setattr(LocalLauncher, "start", lambda *given, **named: pytest.fail("a bridge was started"))
    with socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))  # and never listens
        address = f"127.0.0.1:{nobody.getsockname()[1]}"
        silent = Cluster(address, Home(tmp_path), {}, "tiny", lambda kwargs: kwargs)
        with pytest.raises(ClusterUnreachable, match="No Ray is at") as first:
            await silent.bridge()
        with pytest.raises(ClusterUnreachable) as again:
            await silent.bridge()
    assert again.value is first.value, "it was tried again at once"


async def test_what_speaks_otherwise_is_told_in_a_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def start(*given: Any, **named: Any) -> None:
        raise WorkerDied("Worker bridge could not start: rpc_client.h:204: Failed to connect to GCS within 10 seconds.")

    monkeypatch.setattr(LocalLauncher, "start", start)
    with socket.create_server(("127.0.0.1", 0)) as other:
        address = f"127.0.0.1:{other.getsockname()[1]}"
        with pytest.raises(ClusterUnreachable, match=r": what listens there does not speak as Ray does\. `marlaas"):
            await Cluster(address, Home(tmp_path), {}, "tiny", lambda kwargs: kwargs).bridge()
