"""Tells people once where an environment fails because of what was said (``survivors``), or whatever is said."""

from __future__ import annotations

from collections.abc import Sequence

from ...errors import StoreError
from ...store import Store
from ...trajectories import Failure
from .members import Member
from .survivors import Line, Survivors

EVERY = 64
"""First episodes that all fail in the same place before it is told that no reply can be to blame: a default step."""


class BiasWatch:
    """Of one task's training groups, while one learner runs; an earlier run's findings are known by the store."""

    def __init__(self, store: Store, task: int) -> None:
        self._store = store
        self._task = task
        self._known: dict[tuple[str, str], Survivors] = {}
        """By component of a mixture and version of its environment."""
        self._always: dict[tuple[str, str], list[Failure | None]] = {}
        """Likewise, how the first episodes failed, also where a reward is paid for it; None for one that did not."""

    def see(self, version: str, members: Sequence[Member], component: str = "") -> None:
        """Weigh a group that was played on an environment version, and warn of what is known by now."""
        survivors = self._known.setdefault((component, version), Survivors())
        for line in survivors.see(members):
            about = f"survivors {version} {line.failure.file}:{line.failure.line}"
            self._warn(about, sentence(line, survivors.members))
        first = self._always.setdefault((component, version), [])
        first += [one.played.outcome.failure for one in members[: EVERY - len(first)]]
        if len(first) == EVERY and (failure := the_only(first)):
            self._warn(f"always {version} {failure.file}:{failure.line}", always(failure))

    def _warn(self, about: str, words: str) -> None:
        try:
            new = self._store.tasks.warn(self._task, about, words)
        except StoreError:  # locked or full: the log has it, and the next run finds it again
            new = True
        if new:
            self._store.telemetry.event("environment", words, self._task, "warning")


def the_only(failures: Sequence[Failure | None]) -> Failure | None:
    """The failure of all of them, if it is one at the same place of the code; else None."""
    first = failures[0] if failures else None
    if first is None or not first.line:
        return None
    alike = (one is not None and (one.file, one.line) == (first.file, first.line) for one in failures)
    return first if all(alike) else None


def always(failure: Failure) -> str:
    """That every episode fails in one place, whatever was said, and what helps."""
    return (
        f"Each of the first {EVERY} episodes failed at {failure.file}, line {failure.line} ({failure.message}). What"
        " fails whatever is said is no reward, also where `on_error` pays for it: mend the line, or ask for the form"
        " that it needs."
    )


def sentence(line: Line, members: int) -> str:
    """What is wrong, where, and what helps."""
    place = f"{line.failure.file}, line {line.failure.line}"
    return (
        f"Some replies make the environment fail at {place} ({line.failure.message}): {line.episodes} of {members}"
        " episodes failed there, again each time they were played, while others of the same instances ended well. They"
        " have no reward, so training does not learn to avoid them. Catch the exception and pay a reward, or declare"
        " @env(on_error=0.0)."
    )
