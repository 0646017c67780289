"""A home's cluster: join, leave, look at nodes, drain one."""

from __future__ import annotations

import contextlib
import shutil
import socket
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from marlaas.engine.daemon import control
from marlaas.engine.daemon.control import holder
from marlaas.engine.errors import ClusterUnreachable, ConfigError, MarlaasError
from marlaas.engine.home.paths import Home
from marlaas.engine.home.settings import ClusterSettings, load_settings
from marlaas.engine.machine.cluster.joining import (
    AUTO,
    Address,
    LocalNode,
    address_towards,
    already,
    ask,
    check_listens,
    check_ray,
    check_token,
    keep_token,
    listed_ports,
    local_node,
    make_token,
    own_address,
    parse_address,
    ray_environment,
    ray_folder,
    start_ray,
    stop_ray,
    token_file,
)
from marlaas.engine.machine.cluster.node import (
    Versions,
    differences,
    meant,
    of_each_name,
    own_versions,
    why_not_drain,
)
from marlaas.engine.store.queries import machine
from marlaas.engine.store.queries.machine import NodeRow

from ..reading import reading
from .commands import leave as leave_to_engine, refuse
from .settings_file import write_setting

# Nodes are known from the engine, else from the head.


@dataclass(frozen=True)
class ClusterState:
    """A cluster as this machine sees it."""

    address: str
    own: LocalNode | None
    """This machine's Ray, if this home started one."""
    engine: bool
    """True if the engine reported the nodes; else only names and addresses are known."""
    nodes: tuple[NodeRow, ...]
    token: Path | None = None
    """None if the cluster asks for none."""


def cluster_state(home: Home) -> ClusterState | None:
    """This machine's cluster, or None.

    Raises ``ClusterUnreachable`` if the head does not answer, and ``ConfigError``.
    """
    own, cluster = local_node(home), load_settings(home).cluster
    address = own.head if own is not None else cluster.address
    if not address:
        return None
    with reading(home) as reader:
        rows = tuple(machine.nodes(reader)) if reader is not None and control.alive(home) else ()
        drained = machine.drained_nodes(reader) if reader is not None else frozenset()
    token = None if cluster.insecure else token_file(home, cluster)
    if rows:
        return ClusterState(address, own, True, rows, token)
    if address == AUTO:
        raise ConfigError("Only the engine finds the address `auto`.", "`marlaas engine start` starts one.")
    check_listens(parse_address(address, cluster.port))
    seen = ask("look", address, ray_environment(home, cluster))
    if seen.get("failed"):
        raise ClusterUnreachable(
            f"The head at {address} does not answer: {seen['why']}.",
            "`marlaas cluster leave` leaves a cluster that is gone.",
        )
    found = [
        NodeRow(
            *(node["id"], node["name"], node["address"], node["alive"]),
            here=node["address"] == (own.ip if own else ""),
            draining=node["name"] in drained,
        )
        for node in seen["nodes"]
    ]
    return ClusterState(
        address, own, False, tuple(sorted(of_each_name(found), key=lambda row: (not row.alive, row.name))), token
    )


def standing(home: Home, settings: ClusterSettings) -> tuple[str, str, str]:
    """``doctor``'s verdict, finding and advice, from files and locks. Ray is not asked. Raises ``ConfigError`` if the
    token is not safe."""
    node = local_node(home)
    if node is None and not settings.address:
        return "ok", "none: this machine works alone", ""
    if find_spec("ray") is None:
        return (
            "missing",
            "Ray is not installed",
            "`pip install 'marlaas[cluster]'`, or take `address` out of [cluster].",
        )
    check_token(home, settings)
    if node is not None:
        role = "its head" if node.is_head else f"as {node.name}"
        notes = "whoever reaches its ports runs programs here" if settings.insecure else ""
        return "note" if notes else "ok", f"in that at {node.head}, {role}", notes
    if settings.address == AUTO:
        return "ok", "over whatever Ray runs on this machine", ""
    return (
        "missing",
        f"{settings.address} is set, but this machine's Ray does not run",
        "`marlaas cluster leave` forgets it; then `marlaas cluster join` begins anew.",
    )


def last_event(home: Home) -> int:
    """The number of a home's last event, for ``warning_since``; 0: none."""
    with reading(home) as reader:
        events = machine.newest_events(reader, limit=1) if reader else []
    return events[-1].id if events else 0


def warning_since(home: Home, event: int) -> str:
    """The first warning about the cluster since that event; empty: none."""
    with reading(home) as reader:
        events = machine.newest_events(reader, after=event) if reader else []
    return next((each.message for each in events if each.kind == "node" and each.level == "warning"), "")


def unanswering(home: Home) -> str:
    """The address of a configured cluster of which the engine knows no machine; else empty."""
    try:
        return load_settings(home).cluster.address
    except MarlaasError:  # who works on the settings is shown elsewhere what is wrong with them
        return ""


def steer_node(home: Home, kind: str, word: str) -> tuple[str, bool]:
    """Send ``drain_node`` or ``undrain_node`` for the node ``word``.

    Returns its name, and True if the command waits for an engine. Raises ``ConfigError``, ``ClusterUnreachable``,
    ``EngineUnreachable``.
    """
    state = cluster_state(home)
    if state is None:
        raise ConfigError("This machine is in no cluster.", "`marlaas cluster join` joins one, or begins one.")
    if state.own is not None and not state.own.is_head:
        raise ConfigError(
            "Nodes are drained where the engine runs.", f"Type it on the head, {state.own.head.rpartition(':')[0]}."
        )
    name, unknown = meant(word, state.nodes)
    refuse(unknown)
    if kind == "drain_node" and holder(home.lock) is None:
        refuse(why_not_drain(name, state.nodes, {node.name for node in state.nodes if node.draining}))
    return name, not leave_to_engine(home, kind, node=name)


# Everything is checked before Ray is started.

MEET_SECONDS = 120.0
"""Time for head and machine to reach each other on all ports."""
ALONE = {"RAY_AUTH_MODE": "disabled"}


@dataclass(frozen=True)
class Joined:
    """The result of joining."""

    node: LocalNode
    token: Path | None
    """None if the cluster asks for none."""
    notes: tuple[str, ...] = ()
    """Sentences for people."""
    milliseconds: float | None = None
    """The head's answer time; None for the head itself."""


def become_head(home: Home, token: str | None, ip: str, name: str, notice: Callable[[str], None]) -> Joined:
    """Start the head of a new cluster here, and have this home's engines use it.

    The token is the given one, else this home's, else a new one. Raises ``ConfigError`` and ``ClusterUnreachable``.
    """
    cluster = _settings(home, notice)
    address = own_address(ip)
    if token is not None:
        keep_token(token_file(home, cluster), token)
    kept = None if cluster.insecure else make_token(home, cluster)
    notice("Ray starts on this machine …")
    head = str(Address(address, cluster.port))
    node = start_ray(home, cluster, LocalNode(0, head, True, name or host_name(), address))
    told = ask("tell", head, ray_environment(home, cluster), {"versions": asdict(own_versions())})
    if told.get("failed"):
        stop_ray(home)
        raise ClusterUnreachable(f"Ray has started, but does not answer at {head}: {told['why']}.")
    write_setting(home.config, "address", head, "cluster")
    notes = []
    if control.alive(home):
        restart = "with `marlaas engine drain` and `marlaas engine start`"
        notes.append(f"An engine runs: restart it to use the cluster, {restart}.")
    if cluster.insecure:
        notes.append(f"`insecure = true`: whoever reaches {address} runs programs under your account.")
    return Joined(node, kept, tuple(notes))


def join(home: Home, word: str, token: str | None, ip: str, name: str, notice: Callable[[str], None]) -> Joined:
    """Start Ray here as a node of the cluster whose head is at ``word``.

    Raises ``ConfigError`` if this machine does not fit, ``ClusterUnreachable`` if the head is not reached.
    """
    cluster = _settings(home, notice)
    address = parse_address(word, cluster.port)
    check_listens(address)
    own = own_address(ip) if ip else address_towards(address)
    if token is not None:
        keep_token(token_file(home, cluster), token)
    check_token(home, cluster)
    seen = _look(home, cluster, address)
    if seen["record"] and (differ := differences(own_versions(), Versions(**seen["record"]["versions"]))):
        raise ConfigError(f"This machine cannot join: {differ}", "Install the same versions on both.")
    taken = [node["name"] for node in seen["nodes"] if node["alive"]]
    called = name or free_name(host_name(), taken)
    if called in taken:
        raise ConfigError(f"The cluster has a node {called!r} already.", "Give this one another with --name.")
    notice("Ray starts on this machine …")
    node = start_ray(home, cluster, LocalNode(0, str(address), False, called, own))
    notice("The head and this machine look whether they reach each other …")
    met = ask("meet", node.head, ray_environment(home, cluster) | {"RAY_NODE": own}, None, MEET_SECONDS)
    if met.get("failed"):
        stop_ray(home)
        raise unmet(node, cluster, str(met["why"]))
    return Joined(node, None if cluster.insecure else token_file(home, cluster), (), 1000 * met["seconds"])


def host_name() -> str:
    """The name of this machine."""
    return socket.gethostname().partition(".")[0] or "node"


def free_name(name: str, taken: Iterable[str]) -> str:
    """``name``, or ``name-2`` and so on if it is taken."""
    there, number, free = set(taken), 2, name
    while free in there:
        free, number = f"{name}-{number}", number + 1
    return free


def unmet(node: LocalNode, cluster: ClusterSettings, why: str) -> ClusterUnreachable:
    """The error of a machine that joined but whose calls do not come through."""
    ports = ", ".join(number for number, _ in listed_ports(cluster.port, cluster.ports))
    return ClusterUnreachable(
        f"The head at {node.head} and this machine ({node.ip}) do not reach each other on all ports: {why}.",
        f"A firewall must let both through, in both directions: {ports} (those of the head may differ).",
    )


def _settings(home: Home, notice: Callable[[str], None]) -> ClusterSettings:
    check_ray()
    control.make_home(home, notice)
    if (node := local_node(home)) is not None:
        raise already(node)
    return load_settings(home).cluster


def _look(home: Home, cluster: ClusterSettings, address: Address) -> dict[str, Any]:
    """The cluster's nodes. Raises ``ClusterUnreachable`` if it refuses this machine, ``ConfigError`` if it lets
    everybody in."""
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


WORKER = "marlaas.engine.machine.workers.host"
"""Module of the processes that a node host starts."""


def leave(home: Home, force: bool) -> LocalNode:
    """End this machine's Ray, or forget a dead one, whose ``pid`` is 0.

    Raises ``ConfigError`` without a cluster, or while tasks run over it. ``force`` kills their workers here.
    """
    node = local_node(home)
    if node is None:
        stop_ray(home)  # what one that was killed has left behind
        shutil.rmtree(ray_folder(home), ignore_errors=True)
        address = load_settings(home).cluster.address
        if address in ("", AUTO):
            raise ConfigError("This machine is in no cluster.", "`marlaas cluster join` joins one, or begins one.")
        write_setting(home.config, "address", "", "cluster")  # the next engine works on this machine alone
        return LocalNode(0, address, True, "", "")
    if not force:
        _check_idle(home, node)
    stop_ray(home)
    if node.is_head:
        write_setting(home.config, "address", "", "cluster")
    shutil.rmtree(ray_folder(home), ignore_errors=True)
    return node


def _check_idle(home: Home, node: LocalNode) -> None:
    if node.is_head and control.alive(home):
        raise ConfigError(
            "The engine works over this cluster.",
            "`marlaas engine drain` ends it between steps, and loses nothing; `--force` leaves at once.",
        )
    if busy := workers(node):
        raise ConfigError(
            f"{busy} of the engine's workers {'runs' if busy == 1 else 'run'} on this machine.",
            f"`marlaas cluster drain {node.name}` on the head moves them at the next commit; `--force` leaves at once.",
        )


def workers(node: LocalNode) -> int:
    """Count an engine's processes below this machine's Ray."""
    import psutil

    found = 0
    with contextlib.suppress(psutil.Error):
        for child in psutil.Process(node.pid).children(recursive=True):
            with contextlib.suppress(psutil.Error):
                found += WORKER in child.cmdline()
    return found
