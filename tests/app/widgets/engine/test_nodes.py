"""The pane of nodes: a line for each, what is to be said below it, and nothing of a name that a terminal would obey."""

from __future__ import annotations

from dataclasses import replace

from marlaas.app.widgets.engine_panes import nodes
from marlaas.engine.store.queries.machine import NodeRow

ADA = NodeRow(
    *("a1", "ada", "10.0.0.5", True, True, False, "", 16, 10**10),
    *(("gpu 0 H1",), ("gpu 1 is left alone: bob holds it.",), 0.25, "Python 3.12.3", ("rollout", "training"), 5.0),
)
BOB = NodeRow("b2", "bob\x1b[2J", "10.0.0.6", True, False, refused="torch is older there.\x1b]0;x\x07")


def test_without_a_cluster_there_is_no_pane() -> None:
    assert nodes((), 80) == []


def test_each_node_has_a_line_and_what_is_wrong_another() -> None:
    text = ["".join(part for part, _ in line) for line in nodes((ADA, BOB, replace(ADA, alive=False)), 140)]
    assert text[0].startswith("node") and text[1].startswith("ada (here)") and "1 of 2" in text[1]
    assert text[2] == "  ada: gpu 1 is left alone: bob holds it."
    assert "refused" in text[3] and "is not used: torch is older there." in text[4] and "gone" in text[5]


def test_names_and_reasons_of_others_are_text() -> None:
    for width in (20, 60, 140):
        shown = "".join(part for line in nodes((BOB,), width) for part, _ in line)
        assert shown.isprintable()
