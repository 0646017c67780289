"""The nodes of a cluster in words: rows of a table, and what is to be said of one. Pure."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from pathlib import Path

from marlaas.engine.store import NodeRow

from ..format import counted, line, size


def join_line(head: str, ip: str, token: Path | None) -> str:
    """The line with which another machine joins; ``token`` is the file on the head, at ``ip``."""
    if token is None:
        return f"marlaas cluster join {head}"
    return f"ssh {ip} cat {shlex.quote(str(token))} | marlaas cluster join {head} --token -"


def headers(known: bool) -> tuple[str, ...]:
    """Of the table; ``known``: the engine has looked at the nodes."""
    plain = ("NODE", "ADDRESS", "STATE")
    return (*plain, "CORES", "MEMORY", "CARDS", "WORKERS") if known else plain


def row(node: NodeRow, known: bool) -> tuple[str, ...]:
    """A row of it."""
    name = f"{line(node.name, 32)} (here)" if node.here else line(node.name, 32)
    plain = (name, line(node.address, 45), node.state)
    if not known:
        return plain
    if not node.cores:
        return (*plain, "", "", "", "")
    return (*plain, str(node.cores), size(node.memory), cards(node), ", ".join(line(one, 24) for one in node.workers))


def cards(node: NodeRow) -> str:
    """How many of its cards are used: ``2 of 4``; empty where it has none."""
    all_cards = len(node.cards) + len(node.left_out)
    if not all_cards:
        return ""
    return str(all_cards) if not node.left_out else f"{len(node.cards)} of {all_cards}"


def remarks(node: NodeRow) -> Iterator[str]:
    """Sentences about a node: why it is not used, which cards are left alone, whether its clock is wrong."""
    if node.refused:
        yield f"{node.name} is not used: {node.refused}"
    for why in node.left_out:
        yield f"{node.name}: {why}"
    if node.clock is not None:
        from marlaas.engine.cluster import clock_warning  # never loaded where there is no cluster

        yield from filter(None, (clock_warning(node.name, node.clock),))


def summary(nodes: tuple[NodeRow, ...] | list[NodeRow]) -> str:
    """``3 nodes, 1 draining, 1 gone``."""
    states = [node.state for node in nodes]
    rest = [f"{states.count(state)} {state}" for state in ("draining", "refused", "gone") if state in states]
    return ", ".join([counted(len(nodes), "node"), *rest])
