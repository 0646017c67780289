"""Sentences on the engine and its environments, for its log and the terminal."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Sequence

from ..base import MemoryPlan
from ..environments import EnvironmentEvent, EnvironmentInfo


def say(text: str) -> None:
    """Print one line on standard error, without terminal controls; a full disk or a closed terminal ends nothing."""
    with contextlib.suppress(OSError):
        print("".join(c if c.isprintable() else " " for c in text), file=sys.stderr, flush=True)


def in_words(memory: Sequence[MemoryPlan]) -> str:
    """One sentence on the largest memory plan; it depends on the free memory."""
    conversations = " and ".join(f"{plan.sequences} conversations of {plan.context:,} tokens" for plan in memory)
    return f"Planned are up to {conversations} and {sum(plan.total for plan in memory) / 1e9:.1f} GB of memory."


def names_of(plugin: str, infos: Sequence[EnvironmentInfo]) -> frozenset[str]:
    """All names by which tasks may refer to the environments of a plugin."""
    whole = {info.name for info in infos if info.name.partition("/")[0] == plugin}
    return frozenset(whole | {name.rpartition("/")[2] for name in whole})


_SAID = {
    "rejected": "broken",
    "quarantined": "failing",
    "recovered": "ready again",
    "died": "its process died",
    "elsewhere": "not on all nodes",
    "polled": "changes are looked for every few seconds",
}


def describe(event: EnvironmentEvent) -> str:
    """One sentence on an environment's event: which, what, why, where."""
    text = f"Environment {event.plugin}: {_SAID.get(event.kind, event.kind)}"
    if event.failure is not None:
        place = f"{event.failure.file}:{event.failure.line}" if event.failure.line else event.failure.file
        text += f", {event.failure.message}" + (f" ({place})" if place else "")
    return f"{text}, version {event.version}" if event.version else text
