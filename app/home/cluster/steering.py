"""Drains a node and takes that back: asks the engine, or leaves it to the next one."""

from __future__ import annotations

from marlaas.engine.cluster import meant, why_not_drain
from marlaas.engine.daemon import create_database, holder
from marlaas.engine.errors import ConfigError
from marlaas.engine.home import Home
from marlaas.engine.store import command

from ...reading.opening import opened
from ..commands import unanswered, wait_for_outcomes
from .nodes import cluster_state


def steer_node(home: Home, kind: str, word: str) -> tuple[str, str, bool]:
    """Send ``drain_node`` or ``undrain_node`` for the node that ``word`` means.

    Returns its name, why the engine refuses, empty where it does not, and whether the command waits for an engine.
    Raises ``ConfigError`` where no node may be meant, ``ClusterUnreachable``, and ``EngineUnreachable`` where the
    engine does not answer.
    """
    state = cluster_state(home)
    if state is None:
        raise ConfigError("This machine is in no cluster.", "`marlaas cluster join` joins one, or begins one.")
    if state.own is not None and not state.own.is_head:
        raise ConfigError(
            "Nodes are drained where the engine runs.", f"Type it on the head, {state.own.head.rpartition(':')[0]}."
        )
    name, unknown = meant(word, state.nodes)
    if unknown:
        raise ConfigError(unknown)
    running = holder(home.lock) is not None
    drained = {node.name for node in state.nodes if node.draining}
    if kind == "drain_node" and not running and (why := why_not_drain(name, state.nodes, drained)):
        raise ConfigError(why)
    create_database(home)
    sent = command(home.database, kind, node=name)
    if not running:
        return name, "", True
    with opened(home) as reader:
        outcome = wait_for_outcomes(reader, [sent]).get(sent)
    if outcome is None:
        raise unanswered()
    return name, outcome, False
