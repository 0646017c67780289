"""The cluster's nodes as last seen, and drains, which outlive an engine."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from marlaas.engine.store.queries.machine import NodeRow, nodes
from marlaas.engine.store.queries.reader import Reader
from marlaas.engine.store.store import Store
from marlaas.engine.store.submissions import COMMANDS, NODE_COMMANDS, command

ADA = NodeRow(
    *("a1", "ada", "10.0.0.5", True, True, False, "", 16, 10**10),
    *(("gpu 0 H1",), ("gpu 1 is left alone: bob holds it.",), 0.25, "Python 3.12.3", ("rollout", "training"), 5.0),
)
BOB = replace(ADA, id="b2", name="bob", here=False, alive=False, clock=None, workers=())


@pytest.fixture
def reader(store: Store, database: Path) -> Iterator[Reader]:
    with Reader(database) as reader:
        yield reader


def test_nodes_are_read_as_they_were_written(store: Store, reader: Reader) -> None:
    assert nodes(reader) == []
    store.telemetry.nodes([BOB, ADA])
    assert nodes(reader) == [ADA, BOB]
    store.telemetry.nodes([BOB])
    assert nodes(reader) == [BOB]


def test_what_is_the_same_is_not_written_again(store: Store, reader: Reader) -> None:
    store.telemetry.nodes((ADA,))
    before = reader.changed()
    store.telemetry.nodes((ADA,))
    assert reader.changed() == before


def test_a_drain_outlives_the_engine(store: Store, database: Path) -> None:
    store.telemetry.drain("ada")
    store.telemetry.drain("ada")
    store.telemetry.drain("bob")
    store.telemetry.undrain("bob")
    store.telemetry.undrain("nobody")
    again = Store(database, "tiny")
    assert again.telemetry.drained() == {"ada"}
    again.close()


def test_a_later_engine_hears_who_was_to_be_drained(store: Store, database: Path) -> None:
    assert set(NODE_COMMANDS) <= set(COMMANDS)
    command(database, "drain_node", node="ada")
    store.tasks.forget_stops(float("inf"))
    assert [(one.kind, one.arguments) for one in store.tasks.new_commands()] == [("drain_node", {"node": "ada"})]
