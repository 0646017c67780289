"""How the columns of a trajectory are written, wherever it is stored."""

from __future__ import annotations

import json

import numpy as np
from msgspec.json import encode

from ..trajectories import Span, Trajectory, Transcript

NOTHING = Trajectory("", np.empty(0, np.int32), np.empty(0, np.uint8), np.empty(0, np.float32), ())
"""Stands for the trajectories of an episode in which nobody was asked."""


def said(trajectory: Trajectory, transcript: Transcript) -> dict[str, object]:
    """The columns on what an agent said and earned."""
    return {
        "agent": trajectory.agent,
        "reward": trajectory.reward,
        "cut": int(trajectory.cut),
        "tokens": trajectory.tokens.astype(np.int32, copy=False).tobytes(),
        "mask": trajectory.mask.astype(np.uint8, copy=False).tobytes(),
        "logprobs": trajectory.logprobs.astype(np.float32, copy=False).tobytes(),
        "spans": encode([_span(span) for span in trajectory.spans]).decode(),
        "turns": _turns(transcript),
        "places": encode(transcript.places).decode() if transcript.places else None,
    }


def transcript_of(turns: str | None, places: str | None) -> Transcript:
    """What was said, as it was stored in these columns."""
    told = tuple((turn["role"], turn["text"]) for turn in json.loads(turns or "[]"))
    return Transcript(told, tuple(json.loads(places or "[]")))


def _span(span: Span) -> list[int | float | bool | None]:
    """(start, stop, version), and fork and advantage only where they say something: most tasks need neither."""
    further = [span.fork, span.advantage] if span.fork or span.advantage is not None else []
    return [span.start, span.stop, span.version, *further]


def _turns(transcript: Transcript) -> str:
    """What was said, as JSON."""
    told = [{"role": role, "text": text} for role, text in transcript.turns]
    try:
        return encode(told).decode()
    except UnicodeEncodeError:  # half a character
        return json.dumps(told)
