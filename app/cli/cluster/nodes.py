"""``cluster status | drain | undrain``: who is in the cluster, and who gets nothing new."""

from __future__ import annotations

import argparse
from dataclasses import asdict
from typing import TYPE_CHECKING

from ... import output
from ...words.format import line
from ..verbs import Verbs, add_verb, home_of

if TYPE_CHECKING:
    from ...home.cluster.nodes import ClusterState


def register(family: Verbs) -> None:
    """Add them to the family ``cluster``."""
    add_verb(family, "status", status, "list the machines of the cluster, and what keeps any of them out", json=True)
    drains = add_verb(
        family,
        "drain",
        drain,
        "give a machine nothing new, and move its workers once the steps under way are committed",
        epilog="It outlives the engine, and goes by the name: a machine that joins again is still drained.",
    )
    drains.add_argument("node", metavar="NODE", help="its name, as `marlaas cluster status` lists it")
    undrains = add_verb(family, "undrain", undrain, "let a drained machine work again")
    undrains.add_argument("node", metavar="NODE", help="its name")


def status(args: argparse.Namespace) -> int:
    """Print the nodes; exit 3 where this machine is in no cluster."""
    from ...home.cluster.nodes import cluster_state

    state = cluster_state(home_of(args))
    if args.json:
        nodes = [asdict(row) | {"state": row.state} for row in state.nodes] if state else []
        output.result_json(
            {
                "address": state and state.address,
                "engine": bool(state and state.engine),
                "own": asdict(state.own) if state and state.own else None,
                "nodes": nodes,
            }
        )
        return output.OK if state else output.UNREACHABLE
    if state is None:
        output.result("cluster  none: this machine works alone")
        output.talk("`marlaas cluster join` begins one, `marlaas cluster join ADDRESS` joins one.")
        return output.UNREACHABLE
    output.result(f"cluster  {line(state.address)}")
    _table(state)
    return output.OK


def _table(state: ClusterState) -> None:
    from ...words.machine import headers, join_line, remarks, row

    output.result_table(headers(state.engine), [row(node, state.engine) for node in state.nodes], ("CORES", "MEMORY"))
    for node in state.nodes:
        for remark in remarks(node):
            output.result(f"  {line(remark)}")
    if state.own is not None and state.own.is_head:
        output.talk(f"Another machine joins with: {join_line(state.address, state.own.ip, state.token)}")
    if not state.engine:
        output.talk(
            "No engine works over it here, so cores and cards are not known: `marlaas engine start` starts one."
        )


def drain(args: argparse.Namespace) -> int:
    """Have the engine move everything off a node."""
    name, waits = _ask(args, "drain_node")
    if waits:
        output.talk(f"No engine runs; the next one gives {line(name)} nothing.")
    else:
        output.talk(f"{line(name)} gets nothing new; its workers move when the steps under way are committed.")
    return output.OK


def undrain(args: argparse.Namespace) -> int:
    """Take a drain back."""
    name, waits = _ask(args, "undrain_node")
    output.talk(f"{line(name)} may work again{', once an engine runs' if waits else ''}.")
    return output.OK


def _ask(args: argparse.Namespace, kind: str) -> tuple[str, bool]:
    """Tell the engine, or leave it to the next one; returns the node's name, and whether it waits for an engine.

    Raises ``ConfigError`` where no such node may be meant.
    """
    from marlaas.engine.errors import ConfigError

    from ...home.cluster.steering import steer_node

    name, refused, waits = steer_node(home_of(args), kind, args.node)
    if refused:
        raise ConfigError(refused)
    return name, waits
