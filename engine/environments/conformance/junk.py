"""Check: whatever the model says, the episode ends in time and with a finite reward."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import product

from ..plugin import said
from ..protocol import EpisodeOutcome
from .finding import Finding
from .pace import Pace
from .plays import MOST_TURNS, Played, play
from .replies import JUNK, WRONG_CALL, Canned
from .subject import Subject

CHECK = "junk"
INSTANCES = 3
SIGNALS = "signal only works in main thread"
"""What Python says to ``signal.alarm`` and its like elsewhere."""
COMPARED = "compare reply.text"
"""What a ``Reply`` says that is compared with a text."""
_MOST_NAMED = 4


async def look(subject: Subject, indices: Sequence[int], tools: bool, pace: Pace, share: float) -> list[Played]:
    """Give every reply to a few instances; one that has failed is not tried again."""
    replies = (*JUNK, WRONG_CALL) if tools else JUNK
    played: list[Played] = []
    async for index, reply in pace.take(product(indices[:INSTANCES], replies), share):
        if reply not in failing(played):
            played.append(await play(subject, index, reply, pace))
    return played


def failing(played: Iterable[Played]) -> frozenset[Canned]:
    """The replies that ended an episode without a reward."""
    return frozenset(one.reply for one in played if one.score is None)


def judge(played: Sequence[Played], name: str = "NAME") -> list[Finding]:
    """One finding for each way to fail. ``name``: of the environment."""
    if always := _always(played, name):
        return [always]
    ways: dict[tuple[object, ...], list[Played]] = {}
    for one in played:
        if one.score is None:
            ways.setdefault(_way(one), []).append(one)
    if played and not ways:
        text = f"{len({one.reply for one in played})} odd replies ended in time, and with a reward."
        return [Finding(CHECK, "note", text)]
    return [_finding(alike[0].outcome, _named([one.reply for one in alike])) for alike in ways.values()]


def _always(played: Sequence[Played], name: str) -> Finding | None:
    """A failure in the same place for every reply, where a reward is paid for it or no reply can be to blame."""
    failures = [one.outcome.failure for one in played if one.outcome is not None and one.outcome.failure is not None]
    if not played or len(failures) < len(played) or len({(one.file, one.line) for one in failures}) > 1:
        return None
    text = (
        f"It fails for each of the {len({one.reply for one in played})} replies that were tried: {said(failures[0])}."
    )
    if SIGNALS in failures[0].message:
        decorator = f"@{name}.score" if name.isidentifier() else "@NAME.score"
        text += (
            f" A plain `def` plays in a thread, where Python takes no signals: move what sets an alarm into a function"
            f" under {decorator}, which runs in a process of its own."
        )
        return Finding(CHECK, "error", text)
    if COMPARED in failures[0].message:
        return Finding(CHECK, "error", text)
    if any(one.outcome is not None and one.outcome.status in ("timeout", "skip") for one in played):
        return None
    if any(one.score is None for one in played):
        text += (
            " If a right reply fails there, too, the environment is wrong; give a bad one a reward, or raise Invalid."
        )
        return Finding(CHECK, "error", text)
    return Finding(CHECK, "warning", f"{text} `on_error` pays all of them alike: try whether a right reply earns more.")


def _way(one: Played) -> tuple[object, ...]:
    """A key that is equal for episodes that fail alike; without the message, which may quote the reply."""
    if one.outcome is None or one.outcome.failure is None:
        return (one.outcome is None or one.outcome.status,)
    failure = one.outcome.failure
    return one.outcome.status, failure.file, failure.line, failure.message.partition(":")[0]


def _finding(outcome: EpisodeOutcome | None, replies: str) -> Finding:
    detail = said(outcome.failure) if outcome is not None and outcome.failure else "without a word"
    match outcome.status if outcome is not None else "endless":
        case "endless":
            text = f"Given {replies}, it asks more than {MOST_TURNS:,} times. Bound the turns of an episode."
        case "timeout":
            text = f"Given {replies}, it ends too late: {detail}. Bound the work that a reply can cause."
        case "skip":
            text = f"Given {replies}, it raises Skip: the reply costs nothing. Skip is for unusable draws;"
            return Finding(CHECK, "warning", f"{text} a bad reply is Invalid, which has a reward.")
        case _:
            text = f"Given {replies}, it fails: {detail}. A model says anything: give such a reply a reward,"
            text += " or raise Invalid."
    return Finding(CHECK, "error", text)


def _named(replies: Sequence[Canned]) -> str:
    """The labels of the first few replies, and how many others there are."""
    labels = list(dict.fromkeys(reply.label for reply in replies))
    if len(labels) <= _MOST_NAMED:
        return " or ".join(labels)
    return f"{', '.join(labels[: _MOST_NAMED - 1])} or {len(labels) - _MOST_NAMED + 1} others"
