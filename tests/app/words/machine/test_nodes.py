"""Nodes in words."""

from __future__ import annotations

from dataclasses import replace

import pytest

from marlaas.app.words.machine import cards, headers, remarks, row, summary
from marlaas.engine.store.queries.machine import NodeRow

ADA = NodeRow(
    *("a1", "ada", "10.0.0.5", True, True, False, "", 16, 10**10),
    *(("gpu 0 H1",), ("gpu 1 is left alone: bob holds it.",), 0.25, "Python 3.12.3", ("rollout", "training"), 5.0),
)


def test_a_row_has_a_cell_for_each_heading() -> None:
    for known in (True, False):
        for node in (ADA, replace(ADA, cores=0), replace(ADA, alive=False)):
            assert len(row(node, known)) == len(headers(known))
    assert row(ADA, True) == ("ada (here)", "10.0.0.5", "ready", "16", "10.0 GB", "1 of 2", "rollout, training")


@pytest.mark.parametrize(
    ("used", "left", "text"), [((), (), ""), (("a", "b"), (), "2"), (("a",), ("b", "c"), "1 of 3")]
)
def test_cards_are_counted(used: tuple[str, ...], left: tuple[str, ...], text: str) -> None:
    assert cards(replace(ADA, cards=used, left_out=left)) == text


def test_what_is_wrong_with_a_node_is_said() -> None:
    assert list(remarks(ADA)) == ["ada: gpu 1 is left alone: bob holds it."]
    wrong = replace(ADA, left_out=(), refused="torch is older.", clock=-600.0)
    assert [text.partition(":")[0] for text in remarks(wrong)] == [
        "ada is not used",
        "The clock of ada is 10 minutes behind this machine's",
    ]


def test_a_summary_counts_what_is_not_ready() -> None:
    assert summary([ADA]) == "1 node"
    rest = [replace(ADA, draining=True), replace(ADA, alive=False), replace(ADA, refused="x")]
    assert summary([ADA, *rest]) == "4 nodes, 1 draining, 1 refused, 1 gone"
