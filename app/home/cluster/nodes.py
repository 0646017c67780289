"""What is known of a cluster's nodes: from the engine, which knows most, else from the head itself."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from marlaas.engine.cluster import (
    AUTO,
    LocalNode,
    ask,
    check_listens,
    local_node,
    of_each_name,
    parse_address,
    ray_environment,
    token_file,
)
from marlaas.engine.daemon import control
from marlaas.engine.errors import ClusterUnreachable, ConfigError
from marlaas.engine.home import Home, load_settings
from marlaas.engine.store import NodeRow

from ...reading.opening import reading


@dataclass(frozen=True)
class ClusterState:
    """A cluster as seen from this machine."""

    address: str
    own: LocalNode | None
    """This machine's Ray, where this home has started one."""
    engine: bool
    """Whether the nodes are as this home's engine knows them; else their names and addresses are all that is known."""
    nodes: tuple[NodeRow, ...]
    token: Path | None = None
    """The file with the token; None where the cluster asks for none."""


def cluster_state(home: Home) -> ClusterState | None:
    """The cluster that this machine is in; None where it is in none.

    Raises ``ClusterUnreachable`` where its head does not answer, and ``ConfigError``.
    """
    own, cluster = local_node(home), load_settings(home).cluster
    address = own.head if own is not None else cluster.address
    if not address:
        return None
    with reading(home) as reader:
        rows = tuple(reader.nodes()) if reader is not None and control.alive(home) else ()
        drained = reader.drained_nodes() if reader is not None else frozenset()
    token = None if cluster.insecure else token_file(home, cluster)
    if rows:
        return ClusterState(address, own, True, rows, token)
    if address == AUTO:
        raise ConfigError("Only the engine finds the address `auto`.", "`marlaas engine start` starts one.")
    check_listens(parse_address(address, cluster.port))
    seen = ask("look", address, ray_environment(home, cluster))
    if seen.get("failed"):
        why = {"token": "it does not accept this machine's token"}.get(seen["failed"], seen["why"])
        raise ClusterUnreachable(
            f"The head at {address} does not answer: {why}.", "`marlaas cluster leave` leaves a cluster that is gone."
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
