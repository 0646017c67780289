"""Makes this machine the head of a cluster, or has it join one. Everything is checked before Ray is started.

Knows no terminal; what takes long is told to ``notice``.
"""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from marlaas.engine.cluster import (
    Address,
    ClockReading,
    LocalNode,
    Versions,
    address_towards,
    already,
    ask,
    check_listens,
    check_ray,
    check_token,
    clock_warning,
    differences,
    keep_token,
    listed_ports,
    local_node,
    make_token,
    own_address,
    own_versions,
    parse_address,
    ray_environment,
    start_ray,
    stop_ray,
    token_file,
)
from marlaas.engine.daemon import control
from marlaas.engine.errors import ClusterUnreachable, ConfigError, MarlaasError
from marlaas.engine.home import ClusterSettings, Home, load_settings

from ..settings_file import write_cluster

MEET_SECONDS = 120.0
"""Seconds in which the head and this machine must have reached each other on all ports."""
ALONE = {"RAY_AUTH_MODE": "disabled"}


@dataclass(frozen=True)
class Joined:
    """What came of it."""

    node: LocalNode
    token: Path | None
    """The file with the token; None where the cluster asks for none."""
    notes: tuple[str, ...] = ()
    """Sentences that people should read."""
    milliseconds: float | None = None
    """How long the head takes to answer; None for the head itself."""


def become_head(home: Home, token: str | None, ip: str, name: str, notice: Callable[[str], None]) -> Joined:
    """Start the head of a new cluster on this machine, and have this home's engines use it.

    Its token is the one that is given, else the one that this home has, else a new one. Raises ``ConfigError`` and
    ``ClusterUnreachable``.
    """
    cluster = _settings(home, notice)
    address = own_address(ip)
    if token is not None:
        keep_token(token_file(home, cluster), token)
    kept = None if cluster.insecure else make_token(home, cluster)
    notice("Ray starts on this machine …")
    head = str(Address(address, cluster.port))
    node = start_ray(home, cluster, LocalNode(0, head, True, name or host_name(), address))
    told = ask("tell", head, ray_environment(home, cluster), _record(home, node))
    if told.get("failed"):
        stop_ray(home)
        raise ClusterUnreachable(f"Ray has started, but does not answer at {head}: {told['why']}.")
    write_cluster(home.config, head)
    return Joined(node, kept, tuple(_of_head(home, cluster, address)))


def join(home: Home, word: str, token: str | None, ip: str, name: str, notice: Callable[[str], None]) -> Joined:
    """Start Ray on this machine as a node of the cluster whose head is at ``word``.

    ``token`` is the cluster's, where it was given along. Raises ``ConfigError`` where this machine does not fit, and
    ``ClusterUnreachable`` where the head is not reached.
    """
    cluster = _settings(home, notice)
    address = parse_address(word, cluster.port)
    check_listens(address)
    own = own_address(ip) if ip else address_towards(address)
    if token is not None:
        keep_token(token_file(home, cluster), token)
    check_token(home, cluster)
    seen = _look(home, cluster, address)
    record = seen["record"]
    here, there = own_versions(), Versions(**record.get("versions", {})) if record else None
    if there is not None and (differ := differences(here, there)):
        raise ConfigError(f"This machine cannot join: {differ}", "Install the same versions on both.")
    called = name or free_name(host_name(), [node["name"] for node in seen["nodes"] if node["alive"]])
    if called in [node["name"] for node in seen["nodes"] if node["alive"]]:
        raise ConfigError(f"The cluster has a node {called!r} already.", "Give this one another with --name.")
    notice("Ray starts on this machine …")
    node = start_ray(home, cluster, LocalNode(0, str(address), False, called, own))
    notice("The head and this machine look whether they reach each other …")
    met = ask("meet", node.head, ray_environment(home, cluster) | {"RAY_NODE": own}, None, MEET_SECONDS)
    if met.get("failed"):
        stop_ray(home)
        raise unmet(node, cluster, str(met["why"]))
    clock = ClockReading(*met["clock"])
    notes = [*_of_base(home, record), clock_warning("the head", clock.ahead, clock.at_least)]
    return Joined(
        node,
        None if cluster.insecure else token_file(home, cluster),
        tuple(note for note in notes if note),
        1000 * (clock.heard - clock.asked),
    )


def host_name() -> str:
    """What people call this machine."""
    return socket.gethostname().partition(".")[0] or "node"


def free_name(name: str, taken: Iterable[str]) -> str:
    """``name``, or ``name-2`` and so on where a node has it already."""
    there, number, free = set(taken), 2, name
    while free in there:
        free, number = f"{name}-{number}", number + 1
    return free


def unmet(node: LocalNode, cluster: ClusterSettings, why: str) -> ClusterUnreachable:
    """The error where a machine has joined, and calls do not come through."""
    ports = ", ".join(number for number, _ in listed_ports(cluster.port, cluster.ports))
    return ClusterUnreachable(
        f"The head at {node.head} and this machine ({node.ip}) do not reach each other on all ports: {why}.",
        f"A firewall must let both through, in both directions: {ports} (those of the head may differ).",
    )


def _settings(home: Home, notice: Callable[[str], None]) -> ClusterSettings:
    """The settings of a machine that may join. Raises ``ConfigError``."""
    check_ray()
    control.make_home(home, notice)
    if (node := local_node(home)) is not None:
        raise already(node)
    return load_settings(home).cluster


def _record(home: Home, node: LocalNode) -> dict[str, Any]:
    """What those who join should know of the head before they start anything."""
    record: dict[str, Any] = {"versions": asdict(own_versions()), "name": node.name}
    try:
        base = control.served_base(home)
    except MarlaasError:  # the engine says so when it starts
        return record
    return record | {"base": base.name, "fingerprint": base.fingerprint}


def _look(home: Home, cluster: ClusterSettings, address: Address) -> dict[str, Any]:
    """Who is in the cluster. Raises ``ClusterUnreachable`` where it does not let this machine in, and ``ConfigError``
    where it lets everybody in."""
    with ThreadPoolExecutor(2) as pool:
        ours = pool.submit(ask, "look", str(address), ray_environment(home, cluster))
        alone = None if cluster.insecure else pool.submit(ask, "look", str(address), ALONE)
    seen = ours.result()
    if alone is not None and not alone.result().get("failed"):
        raise ConfigError(
            f"The cluster at {address} asks for no token: whoever reaches it runs programs on its machines.",
            "Start its head with `marlaas cluster join`, or set `insecure = true` under [cluster].",
        )
    if seen.get("failed") == "token":
        raise ClusterUnreachable(
            f"The head at {address} does not accept this machine's token.",
            f"Copy the head's file to {token_file(home, cluster)}, or give it with --token.",
        )
    if seen.get("failed"):
        raise ClusterUnreachable(
            f"What answers at {address} is no head of a cluster: {seen['why']}.",
            "On the head, `marlaas cluster status` says its address.",
        )
    return seen


def _of_base(home: Home, record: dict[str, Any]) -> Iterable[str]:
    """What is to be said where this machine's base is another one than the head's."""
    from marlaas.engine.submission import settled_base

    if not record.get("fingerprint"):
        return
    try:
        own = settled_base(home)
    except MarlaasError as error:
        yield f"This machine has no base yet: {error.message} {_same(record)}"
        return
    if own.fingerprint != record["fingerprint"]:
        yield f"This machine's base, {own.name}, is not made of the head's files. {_same(record)}"


def _same(record: dict[str, Any]) -> str:
    return (
        f"No worker runs here before it is the head's, {record['base']}: `marlaas base use` sets it, then join again."
    )


def _of_head(home: Home, cluster: ClusterSettings, address: str) -> Iterable[str]:
    if control.alive(home):
        yield "An engine runs: restart it to use the cluster, with `marlaas engine drain` and `marlaas engine start`."
    if cluster.insecure:
        yield f"`insecure = true`: whoever reaches {address} runs programs under your account."
