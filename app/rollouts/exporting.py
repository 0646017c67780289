"""Conversations as JSON records or plain text, written into a file."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from itertools import repeat
from pathlib import Path
from typing import Any, TextIO

from marlaas.engine.errors import ConfigError
from marlaas.engine.home.paths import Home
from marlaas.engine.store.queries.episodes import StoredConversation, StoredTrajectory, conversation, episode
from marlaas.engine.store.queries.reader import Reader

from ..reading import opened
from ..spoken import without_signs
from .answers import Block
from .reading import TURNS, Shading, episode_blocks, in_order, places

# Text is safe for a terminal, JSON is ASCII.


def episode_text(episode: Sequence[StoredConversation], heard: bool = False) -> str:
    """An episode as text, turns in order.

    ``heard``: without signs in our own lines, which have a style.
    """
    blocks = episode_blocks(episode, Shading(TURNS), None)
    if heard:
        blocks = [replace(block, text=without_signs(block.text)) if block.style else block for block in blocks]
    return joined(blocks) + "\n"


def joined(found: Sequence[Block]) -> str:
    """Blocks as text."""
    return "\n".join(block.text for block in found)


def record(conversation: StoredConversation) -> dict[str, Any]:
    """A JSON object; numbers that JSON does not know are null."""
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
    """One line of ASCII."""
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


READABLE = (".txt", ".md")
"""Suffixes of files for people; others get a record a line."""


def export(home: Home, ids: Sequence[int], file: Path) -> int:
    """Write conversations to a new file; returns their number.

    Raises ``ConfigError``, ``StoreError``, and leaves no file then.
    """
    try:
        with opened(home) as reader, new_file(file) as out:
            if file.suffix in READABLE:
                return write_readable(episodes(reader, ids), out)
            return write(read(reader, ids), out)
    except FileExistsError as error:
        raise ConfigError(
            "the file is there already.", "Give another name, or remove it first.", where=str(file)
        ) from error
    except OSError as error:
        raise ConfigError(f"the file cannot be written: {error.strerror}.", where=str(file)) from error


@contextmanager
def new_file(path: Path) -> Iterator[TextIO]:
    """A new file, removed on failure. Raises ``FileExistsError``, ``OSError``."""
    with path.open("x", encoding="utf-8", errors="replace") as out:
        try:
            yield out
            out.flush()
        except BaseException:
            path.unlink(missing_ok=True)
            raise


def write(conversations: Iterable[StoredConversation], out: TextIO) -> int:
    """Write a record a line; returns their number."""
    count = 0
    for one in conversations:
        out.write(json_line(one) + "\n")
        count += 1
    return count


def write_readable(found: Iterable[Sequence[StoredConversation]], out: TextIO) -> int:
    """Write episodes for people; returns the number of conversations."""
    count = 0
    for one in found:
        out.write(f"{'─' * 80 + chr(10) if count else ''}{episode_text(one)}")
        count += len(one)
    return count


def read(reader: Reader, ids: Iterable[int]) -> Iterator[StoredConversation]:
    """One at a time; missing ones are left out."""
    for id in ids:
        found = conversation(reader, id)
        if found is not None:
            yield found


def episodes(reader: Reader, ids: Sequence[int]) -> Iterator[list[StoredConversation]]:
    """By episode, at the place of its first conversation."""
    wanted, given = set(ids), set[int]()
    for id in ids:
        if id not in given:
            together = [one for one in episode(reader, id) if one.id in wanted]
            given.update(one.id for one in together)
            if together:
                yield together
