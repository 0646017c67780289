"""Ray takes the ports that a firewall was told of, and no others."""

from __future__ import annotations

import re

from hypothesis import given, settings, strategies as st

from marlaas.engine.home.settings import PORTS
from marlaas.engine.machine.cluster.joining import in_the_way, listed_ports, port_flags, port_variables

from .....examples import examples


@settings(max_examples=examples())
@given(st.integers(1024, 65536 - PORTS))
def test_every_port_lies_in_the_range_once(first: int) -> None:
    ports = [int(flag.rpartition("=")[2]) for flag in port_flags(first)] + [*map(int, port_variables(first).values())]
    assert len(set(ports)) == len(ports)
    assert all(first <= port < first + PORTS for port in ports)
    lists = [tuple(map(int, re.findall(r"\d+", number))) for number, _ in listed_ports(6379, first)]
    assert lists[0] == (6379,) and {port for row in lists[1:] for port in row} == set(ports)


def test_who_listens_at_a_port_that_ray_needs_is_in_the_way() -> None:
    others = [22, 6379, 6400, 6404, 6411, 7000]
    assert in_the_way(others, 6400, 6379) == [6379, 6400, 6404]
    assert in_the_way(others, 6400, None) == [6400, 6404], "of workers' ports Ray takes those that are free"
    assert in_the_way([22, 6411], 6400, 6379) == []


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
