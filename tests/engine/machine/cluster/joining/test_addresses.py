"""What is an address, who listens there, and which one this machine has."""

from __future__ import annotations

import socket
import time
from collections import namedtuple

import psutil
import pytest
from hypothesis import given, strategies as st

from marlaas.engine.errors import ClusterUnreachable, ConfigError
from marlaas.engine.machine.cluster.joining import (
    Address,
    address_towards,
    check_listens,
    own_address,
    own_addresses,
    parse_address,
)

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


@pytest.mark.parametrize(
    "text", ["", ":6379", "a:b", "a:0", "a:70000", "ray://a:1", "a b:1", "me@a:1", "a\x1b:1", "²:²"]
)
def test_what_is_none_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="is no address"):
        parse_address(text, 6379)


@given(st.text(max_size=12))
def test_any_text_is_an_address_or_refused(text: str) -> None:
    try:
        address = parse_address(text, 6379)
    except ConfigError:
        return
    assert parse_address(str(address), 1) == address


def test_who_listens_is_known_at_once() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        check_listens(Address("127.0.0.1", port))
    begun = time.monotonic()
    with pytest.raises(ClusterUnreachable, match=rf"No Ray is at 127.0.0.1:{port}: connection refused"):
        check_listens(Address("127.0.0.1", port))
    assert time.monotonic() - begun < 2.0


def test_who_does_not_answer_is_not_waited_for_long(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[float] = []

    def silent(address: tuple[str, int], timeout: float) -> socket.socket:
        asked.append(timeout)
        raise TimeoutError

    monkeypatch.setattr(socket, "create_connection", silent)
    with pytest.raises(ClusterUnreachable, match=r"Nothing answers at 10\.0\.0\.5:6379 within 3 s"):
        check_listens(Address("10.0.0.5", 6379))
    assert asked == [3.0]


def test_a_name_that_nobody_has_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    def unknown(address: tuple[str, int], timeout: float) -> socket.socket:
        raise socket.gaierror(-2, "Name or service not known")

    monkeypatch.setattr(socket, "create_connection", unknown)
    with pytest.raises(ClusterUnreachable, match="No machine is called 'ada'"):
        check_listens(Address("ada", 1))


def test_the_way_to_oneself_begins_at_oneself() -> None:
    assert address_towards(Address("127.0.0.1", 6379)) == "127.0.0.1"


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
