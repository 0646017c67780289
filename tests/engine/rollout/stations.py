"""Stations for tests: seats for a sampler that a test has made."""

from __future__ import annotations

from typing import Any

from marlaas.engine.fairness.line import Line
from marlaas.engine.rollout.endpoint import Station
from marlaas.engine.rollout.slots import Seats


def station(sampler: Any, sequences: int, context: int, name: str = "rollout") -> Station:
    """One of a kind that does not matter."""
    return Station(name, "torch", sampler, context, Seats(sequences, Line()))
