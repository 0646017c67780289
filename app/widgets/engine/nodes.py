"""The machines of the cluster: which of them work, what each gives, and what keeps one out."""

from __future__ import annotations

from collections.abc import Sequence

from marlaas.engine.store import NodeRow

from ...words.format import line
from ...words.machine.nodes import headers, remarks, row
from .pane import Line, table

_STYLES = {"ready": "", "draining": "$text-muted", "refused": "$text-warning", "gone": "$text-error"}


def nodes(rows: Sequence[NodeRow], width: int) -> list[Line]:
    """A line for each node, and further ones for what is to be said of it; empty without a cluster."""
    if not rows:
        return []
    names = [name.lower() for name in headers(True)]
    shown, *lines = table(names, [row(node, True) for node in rows], (24, 16, 9, -5, -9, 8, 40), width)
    found = [shown]
    for node, text in zip(rows, lines, strict=True):
        style = _STYLES[node.state]
        found.append(tuple((part, own or style) for part, own in text))
        found += [(("  " + line(remark, width - 2), "$text-warning"),) for remark in remarks(node)]
    return found
