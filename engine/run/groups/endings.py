"""The reasons with which a run ends before its last step: its task then has a state and a sentence, not a crash."""

from __future__ import annotations

from collections.abc import Sequence

from ...errors import Fruitless, Paused
from ...rollout import Played


def never_spoke(agents: Sequence[str], policy: str, where: str) -> Fruitless:
    """The error that pauses a task whose environment asks no agent of one of its policies."""
    asked = f"The agent {agents[0]} was" if len(agents) == 1 else f"The agents {' and '.join(agents)} were"
    return Fruitless(
        f"{asked} never asked in {where}, so the policy {policy} learns nothing.",
        "Let the environment ask, or give that policy a `frozen` version.",
    )


def all_lost(draws: int, played: Sequence[Played], component: str = "") -> Paused:
    """The error for a group number whose draws lose all of their members; ``component``: of a mixture, which."""
    which = f" {component}" if component else ""
    return Paused(f"The environment{which} failed {draws} groups in a row: {first_failure(played)}.")


def too_few(draws: int, wanted: int, played: Sequence[Played], component: str = "") -> Paused:
    """The error for a group number whose draws lose more members than a group of ``wanted`` can do without."""
    on = f" on {component}" if component else ""
    return Paused(
        f"In {draws} draws for one group{on} fewer than {wanted} of {len(played)} members had a reward:"
        f" {first_failure(played)}.",
        "Catch the exception and pay a reward, declare `on_error`, or lower 'train.min_members'.",
    )


def first_failure(played: Sequence[Played]) -> str:
    """What went wrong in the first failed episode, with the place in the plugin."""
    for one in played:
        failure = one.episode.failure
        if failure and one.episode.status != "ok":
            place = f" ({failure.file}, line {failure.line})" if failure.file else ""
            return f"{failure.message}{place}"
    if any(one.episode.status == "ok" for one in played):
        return "the environment ended without asking the model"
    statuses = {one.episode.status for one in played}
    return " and ".join(sorted(_WORDS.get(status, status) for status in statuses))


_WORDS = {"skip": "the environment skipped it", "timeout": "it took too long", "cancelled": "it was cut off"}
