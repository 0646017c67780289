"""A program's file with its episode's reward: a number, or JSON with parts; not trusted."""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Mapping

from ..rewards import Score, finite

LARGEST = 64 << 10
REWARD = "reward"
"""The JSON key of the trained value; all others are parts that are charted."""

Reward = float | Score | dict[str, float | Score]


def read_text(folder: str, name: str, most: int) -> str | None:
    """The text of a file that a program left; None if there is none.

    Raises ``ValueError`` unless it is a plain file of at most ``most`` bytes. A link is not followed, a pipe not read.
    """
    try:
        file = os.open(os.path.join(folder, name), os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise ValueError(f"{name} cannot be read: {error.strerror}") from None
    try:
        if not stat.S_ISREG(os.fstat(file).st_mode):
            raise ValueError(f"{name} is no plain file")
        content = b""
        while len(content) <= most and (more := os.read(file, most + 1 - len(content))):
            content += more
    finally:
        os.close(file)
    if len(content) > most:
        raise ValueError(f"{name} is larger than {most:,} bytes")
    return content.decode("utf-8", "replace")


def reward_of(text: str, name: str) -> Reward:
    """The reward in a text: ``0.5``, ``true``, ``{"reward": 0.5, "spelling": 1}``, or a reward by agent, ``{"reward":
    {"first": 1, "second": -1}}``.

    ``name`` is the file's. Raises ``TypeError`` or ``ValueError`` in words for anything else.
    """
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        try:
            value = float(text)  # as in "+1", ".5"
        except ValueError:
            shown = text.strip()
            raise ValueError(
                f"{name} must hold a number or JSON with {REWARD!r}, not {shown[:40]!r}"
                if shown
                else f"{name} is empty: write a number"
            ) from None
    if not isinstance(value, Mapping):
        return finite(value, f"what {name} holds")
    if REWARD not in value:
        raise ValueError(f"{name} has no {REWARD!r}; it has {', '.join(map(str, value))[:80] or 'nothing'}")
    whole = value[REWARD]
    parts = {key: finite(part, f"{key!r} in {name}") for key, part in value.items() if key != REWARD}
    if not isinstance(whole, Mapping):
        score = Score(finite(whole, f"{REWARD!r} in {name}"))
        score.parts.update(parts)  # not by keyword: a part may have any name
        return score
    by_agent: dict[str, float | Score] = {
        agent: finite(part, f"the reward of {agent!r} in {name}") for agent, part in whole.items()
    }
    if parts:  # they are the episode's, and parts are some agent's
        first = next(iter(by_agent), "")
        raise ValueError(f"{name} has a reward for each agent, so {next(iter(parts))!r} cannot stand beside {first!r}")
    return by_agent
