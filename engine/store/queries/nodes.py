"""Reads the nodes of the cluster as the engine last saw them. Standard library only."""

from __future__ import annotations

import json
from dataclasses import dataclass

from .reader import Reader


@dataclass(frozen=True)
class NodeRow:
    """One machine of the cluster."""

    id: str
    """Ray's id: another each time that the machine joins."""
    name: str
    """What people call it."""
    address: str
    """Its address in the cluster."""
    alive: bool
    here: bool
    """Whether it is the engine's own machine."""
    draining: bool = False
    """Whether it gets nothing new."""
    refused: str = ""
    """Why it is not used, in one sentence; empty where it is."""
    cores: int = 0
    """Cores that may be used there."""
    memory: int = 0
    """Bytes of main memory that were free there."""
    cards: tuple[str, ...] = ()
    """Labels and names of the cards that may be used."""
    left_out: tuple[str, ...] = ()
    """Why other cards are left alone, in a sentence each."""
    clock: float | None = None
    """Seconds by which its clock is ahead of the engine's; None where that is not known."""
    versions: str = ""
    """``Python 3.12.3, torch 2.11.0``"""
    workers: tuple[str, ...] = ()
    """Names of the workers that run there."""
    updated: float = 0.0
    """When the engine last heard of it, in seconds since 1970."""

    @property
    def state(self) -> str:
        """``ready``, ``draining``, ``refused`` or ``gone``."""
        if not self.alive:
            return "gone"
        return "refused" if self.refused else "draining" if self.draining else "ready"


def node_rows(reader: Reader) -> list[NodeRow]:
    """All nodes, the engine's machine first, then by name; none where the engine knows of no cluster."""
    return [
        NodeRow(
            id=row["id"],
            name=row["name"],
            address=row["address"],
            alive=bool(row["alive"]),
            here=bool(row["here"]),
            draining=bool(row["draining"]),
            refused=row["refused"],
            cores=row["cores"],
            memory=row["memory"],
            cards=tuple(json.loads(row["cards"])),
            left_out=tuple(json.loads(row["left_out"])),
            clock=row["clock"],
            versions=row["versions"],
            workers=tuple(json.loads(row["workers"])),
            updated=row["updated"],
        )
        for row in reader.all("SELECT * FROM nodes ORDER BY here DESC, name, id")
    ]


def drained_nodes(reader: Reader) -> frozenset[str]:
    """Names of the nodes that people drain, with what they have asked for since the last engine ended."""
    drained = {row["node"] for row in reader.all("SELECT node FROM drains")}
    asked = reader.all(
        "SELECT kind, arguments FROM commands WHERE kind IN ('drain_node', 'undrain_node') AND done IS NULL ORDER BY id"
    )
    for row in asked:
        node = json.loads(row["arguments"]).get("node")
        drained = drained | {node} if row["kind"] == "drain_node" else drained - {node}
    return frozenset(drained)
