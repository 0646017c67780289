"""Reads the machine's cards as the engine last saw them. Standard library only."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass

from ...devices import Holder
from .reader import Reader


@dataclass(frozen=True)
class DeviceRow:
    """One card."""

    uuid: str
    label: str
    """``gpu 0``"""
    name: str
    memory: int
    """Bytes of memory in all."""
    free: int
    """Bytes of memory that no process holds."""
    utilisation: float | None
    """Share of the time just before in which it computed, 0 to 1; None where the driver does not say."""
    reason: str
    """Why the engine does not use it, in one sentence; empty where it may."""
    holders: tuple[Holder, ...]
    """Processes that hold memory of it, the largest first."""
    updated: float
    """In seconds since 1970."""


def device_rows(reader: Reader) -> list[DeviceRow]:
    """All cards, in the driver's order; none where the engine has seen none."""
    rows = reader.all("SELECT * FROM devices ORDER BY place")
    return [
        DeviceRow(
            holders=tuple(Holder(**holder) for holder in json.loads(row["holders"])),
            **{name: row[name] for name in row.keys() if name not in ("place", "holders")},  # noqa: SIM118 (a Row)
        )
        for row in rows
    ]


def held_by(rows: Sequence[DeviceRow]) -> dict[int, int]:
    """Bytes of memory that each process (by pid) holds on all cards together."""
    held: dict[int, int] = {}
    for row in rows:
        for holder in row.holders:
            held[holder.pid] = held.get(holder.pid, 0) + holder.memory
    return held
