"""Tells people once where an environment fails because of what was said (``survivors``)."""

from __future__ import annotations

from collections.abc import Sequence

from ...errors import StoreError
from ...store import Store
from .members import Member
from .survivors import Line, Survivors


class BiasWatch:
    """Of one task's training groups, while one learner runs; an earlier run's findings are known by the store."""

    def __init__(self, store: Store, task: int) -> None:
        self._store = store
        self._task = task
        self._known: dict[tuple[str, str], Survivors] = {}
        """By component of a mixture and version of its environment."""

    def see(self, version: str, members: Sequence[Member], component: str = "") -> None:
        """Weigh a group that was played on an environment version, and warn of what is known by now."""
        survivors = self._known.setdefault((component, version), Survivors())
        for line in survivors.see(members):
            about = f"survivors {version} {line.failure.file}:{line.failure.line}"
            self._warn(about, sentence(line, survivors.members))

    def _warn(self, about: str, words: str) -> None:
        try:
            new = self._store.tasks.warn(self._task, about, words)
        except StoreError:  # locked or full: the log has it, and the next run finds it again
            new = True
        if new:
            self._store.telemetry.event("environment", words, self._task, "warning")


def sentence(line: Line, members: int) -> str:
    """What is wrong, where, and what helps."""
    place = f"{line.failure.file}, line {line.failure.line}"
    return (
        f"Some replies make the environment fail at {place} ({line.failure.message}): {line.episodes} of {members}"
        " episodes failed there, again each time they were played, while others of the same instances ended well. They"
        " have no reward, so training does not learn to avoid them. Catch the exception and pay a reward, or declare"
        " @env(on_error=0.0)."
    )
