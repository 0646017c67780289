"""How the columns of a trajectory are written, wherever it is stored."""

from __future__ import annotations

import json

import numpy as np

from ..trajectories import Span, Trajectory, Transcript

NOTHING = Trajectory("", np.empty(0, np.int32), np.empty(0, np.uint8), np.empty(0, np.float32), ())
"""Stands for the trajectories of an episode in which nobody was asked."""


def span_of(span: Span) -> list[int | float | bool | None]:
    """(start, stop, version), and fork and advantage only where they say something: most tasks need neither."""
    further = [span.fork, span.advantage] if span.fork or span.advantage is not None else []
    return [span.start, span.stop, span.version, *further]


def turns_of(transcript: Transcript) -> str:
    """What was said, as JSON."""
    return json.dumps([{"role": role, "text": text} for role, text in transcript.turns])
