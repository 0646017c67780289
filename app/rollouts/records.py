"""Conversations for other programs and for other people: as records of JSON, and as plain text.

The text is safe for a terminal; the JSON is ASCII when written.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import replace
from itertools import repeat
from typing import Any

from marlaas.engine.store import StoredConversation, StoredTrajectory

from ..spoken import without_signs
from .document import Block
from .interleaving import in_order, places
from .reading import episode_blocks
from .shading import TURNS, Shading


def episode_text(episode: Sequence[StoredConversation], heard: bool = False) -> str:
    """The conversations of an episode as text, all turns in the order in which they were said.

    ``heard``: without signs in the lines that are ours, which alone have a style.
    """
    blocks = episode_blocks(episode, Shading(TURNS), None)
    if heard:
        blocks = [replace(block, text=without_signs(block.text)) if block.style else block for block in blocks]
    return joined(blocks) + "\n"


def joined(found: Sequence[Block]) -> str:
    """Blocks as text."""
    return "\n".join(block.text for block in found)


def record(conversation: StoredConversation) -> dict[str, Any]:
    """A conversation as a JSON object; numbers that JSON does not know are null."""
    one = conversation
    return {
        **{name: getattr(one, name) for name in ("id", "task", "split", "step", "instance", "member", "agent")},
        **{name: getattr(one, name) for name in ("policy", "speaker", "spoke", "play")},
        "group": one.number,
        **{
            name: getattr(one, name)
            for name in ("version", "environment_version", "component", "status", "cut", "seconds")
        },
        "reward": _finite(one.reward),
        "advantage": _finite(one.advantage),
        "paid": [{"turns": paid.turns, "amount": _finite(paid.amount), "name": paid.name} for paid in one.paid],
        "scores": {name: _finite(value) for name, value in one.scores.items()},
        "metrics": {name: _finite(value) for name, value in one.metrics.items()},
        "failure": {"message": one.failure, "file": one.file, "line": one.line, "traceback": one.traceback}
        if one.failure
        else None,
        "turns": [
            {"role": said.turn.role, "text": said.turn.text, "at": places(one, said.part)[said.place]}
            for said in in_order([one])
        ],
        "order_known": one.order_known,
        "trajectories": [_trajectory(part) for part in one.parts],
    }


def json_line(conversation: StoredConversation) -> str:
    """The JSON object in one line of ASCII; half characters and control characters are escaped."""
    return json.dumps(record(conversation), allow_nan=False)


def _trajectory(part: StoredTrajectory) -> dict[str, Any]:
    tokens = part.tokens
    return {
        "id": part.id,
        "length": part.length,
        "tokens": list(tokens.ids),
        "sampled": list(tokens.sampled),
        "logprobs": [_finite(value) for value in tokens.logprobs],
        "spans": [
            {"start": start, "stop": stop, "version": version} | ({} if own is None else {"advantage": own})
            for (start, stop, version), own in zip(tokens.spans, tokens.advantages or repeat(None), strict=False)
        ],
        "log_weights": [_finite(value) for value in tokens.weights],
    }


def _finite(value: Any) -> Any:
    return None if isinstance(value, float) and not math.isfinite(value) else value
