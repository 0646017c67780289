"""What the view of adapters shows: the versions that are on the disk, and how the task of one of them learns."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from marlaas.engine.store import KeptMarks, KeptVersion

from ..lists.learners import Learner
from ..reading.home_reader import HomeReader
from .preview import PreviewAnswer, PreviewQuestion


@dataclass(frozen=True)
class AdaptersAnswer:
    """All versions on the disk, newest task first and newest version first."""

    versions: tuple[KeptVersion, ...] = ()
    marks: KeptMarks = field(default_factory=dict)
    by_policy: Mapping[int, tuple[KeptVersion, ...]] = field(default_factory=dict)
    preview: PreviewAnswer | None = None
    """Of the learner that was asked about: its curve, and what it wrote last."""


def _place(kept: KeptVersion) -> tuple[int, ...]:
    """A sort key: policies of a task together, in the order in which they began."""
    return -kept.row.task, kept.policy_id, -kept.row.number, -kept.row.id


@dataclass(frozen=True)
class AdaptersQuestion:
    """Asks for all tasks; the view chooses which to show. Of the one it is ``about``, for more."""

    about: Learner | None = None
    known: AdaptersAnswer | None = field(default=None, compare=False, repr=False)
    """An answer to another question, from which versions can be taken over."""

    def read(self, reader: HomeReader, before: AdaptersAnswer | None) -> AdaptersAnswer:
        """Read what has changed."""
        before = before or self.known or AdaptersAnswer()
        answer = self._versions(reader, before)
        if self.about is None:
            return answer
        return replace(answer, preview=PreviewQuestion((self.about,)).read(reader, before.preview))

    @staticmethod
    def _versions(reader: HomeReader, before: AdaptersAnswer) -> AdaptersAnswer:
        """The versions; only policies whose versions, scores or tasks have changed are read again."""
        marks = reader.kept_marks()
        if marks == before.marks:
            return before
        changed = {policy for policy, mark in marks.items() if before.marks.get(policy) != mark}
        known = {policy: kept for policy, kept in before.by_policy.items() if policy in marks.keys() - changed}
        read: dict[int, list[KeptVersion]] = {}
        for kept in reader.kept_versions(changed):
            read.setdefault(kept.policy_id, []).append(kept)
        by_policy = {**known, **{policy: tuple(kept) for policy, kept in read.items()}}
        versions = (kept for own in by_policy.values() for kept in own)
        ordered = sorted(versions, key=_place)
        return AdaptersAnswer(tuple(ordered), marks, by_policy)
