"""Finds the versions and folders that a task file refers to: where training begins, who plays along, what is measured.

Versions are bound by id when the task is submitted: which one is the best may have changed when it starts.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

from ..errors import AdapterError, ConfigError, MarlaasError, Mistakes, ReferenceMissing
from ..spec import BASE, TaskSpec, agent_map_of, inside, parse, start_folder
from ..store import Borrowed, Submission, VersionRow
from .mistakes import of_submission
from .version_names import choose_at


class Versions(Protocol):
    """What is asked of a home here; every reader of one can answer."""

    def versions(self) -> list[VersionRow]:
        """All versions."""

    def task_config(self, task: int) -> dict[str, Any]:
        """The whole task file of a task with defaults filled."""


@dataclass(frozen=True)
class Reference:
    """Words in a task file that mean a version or folder, and what it is for."""

    words: str
    key: str
    """The key of the task file that has them."""
    rank: int = 0
    """Rank of the adapter whose training begins from it; 0: it is only played with."""
    alpha: float = 0.0

    @property
    def table(self) -> str:
        """The table that the key belongs to."""
        return self.key.rpartition(".")[0]


@dataclass(frozen=True)
class _Found:
    """What a reference means; ``words`` describe it for an error."""

    words: str
    policy: Mapping[str, float]
    """Its rank and alpha."""
    version: int | None = None
    """Its id; None for a folder."""


def references(spec: TaskSpec) -> Iterator[Reference]:
    """All references of a specification to versions and folders outside of its own task."""
    yield from (Reference(words, f"versions[{place}]") for place, words in enumerate(spec.versions) if words != BASE)
    for name, policy in agent_map_of(spec).policies.items():
        table = f"policies.{name}" if spec.policies else "policy"
        if policy.start:
            yield Reference(policy.start, f"{table}.start", policy.rank, policy.alpha)
        if policy.frozen and policy.frozen != BASE and inside(policy.frozen, spec) is None:
            yield Reference(policy.frozen, f"{table}.frozen")
    for agent, words in spec.eval.agents.items():
        if words != BASE and words not in spec.policies and inside(words, spec) is None:
            yield Reference(words, f"eval.agents.{agent}")


def find_starts(submissions: Sequence[Submission], reader: Versions | None) -> list[Submission]:
    """Bind every reference; ``reader`` is None where the home has no database.

    Raises ``ReferenceMissing``, with all of them, where there is no such version or folder, or it does not fit. A
    version's base is not checked: all adapters of a home have the same. A folder's base is checked by the trainer.
    """
    wishes = [list(references(parse(submission.config, submission.name))) for submission in submissions]
    said = sorted({wish.words for own in wishes for wish in own})
    named = any(start_folder(words) is None for words in said)
    versions = reader.versions() if reader and named else []
    found: dict[str, _Found | MarlaasError] = {}
    for words in said:
        try:
            found[words] = _look_up(words, versions, reader)
        except (AdapterError, ConfigError) as error:
            found[words] = error
    mistakes, bound = Mistakes(), []
    for submission, own in zip(submissions, wishes, strict=True):
        for wish in own:
            if fault := _fault(submission, wish, found[wish.words]):
                mistakes.found += of_submission(fault, submission)
        bound.append(_bound(submission, own, found))
    mistakes.refuse()
    return bound


def _fault(submission: Submission, wish: Reference, meant: _Found | MarlaasError) -> ReferenceMissing | None:
    """What is wrong with a reference: it leads nowhere, or to something that does not fit."""
    if isinstance(meant, MarlaasError):
        return ReferenceMissing(meant.cause, meant.hint, path=wish.key)
    return _misfit(submission, wish, meant)


def _look_up(wish: str, versions: list[VersionRow], reader: Versions | None) -> _Found:
    folder = start_folder(wish)
    if folder is not None:
        from ..adapters import read_peft_folder  # loads numpy, which only a start from a folder needs

        header = read_peft_folder(folder).header
        return _Found(str(folder), {"rank": header.rank, "alpha": header.alpha})
    version = choose_at(versions, wish)
    config = reader.task_config(version.task) if reader else {}
    policy = config.get("policies", {}).get(version.policy) or config.get("policy", {})
    return _Found(f"version {version.number} of task {version.task}", policy, version.id)


def _bound(
    submission: Submission, wishes: Sequence[Reference], found: Mapping[str, _Found | MarlaasError]
) -> Submission:
    borrowed: dict[str, Borrowed] = {}
    for wish in wishes:
        meant = found[wish.words]
        if isinstance(meant, _Found) and meant.version is not None:
            plays = not wish.rank or (wish.words in borrowed and borrowed[wish.words].plays)
            borrowed[wish.words] = Borrowed(wish.words, meant.version, plays)
    return replace(submission, borrowed=tuple(borrowed.values()))


def _misfit(submission: Submission, wish: Reference, found: _Found) -> ReferenceMissing | None:
    """Another rank, which the matrices do not fit, or another alpha, which would make it another policy."""
    if not wish.rank:
        return None
    for key, own in (("rank", wish.rank), ("alpha", wish.alpha)):
        if own != found.policy[key]:
            return ReferenceMissing(
                f"{submission.name!r} begins from {found.words}, whose {key} is {found.policy[key]:g}, but its own is"
                f" {own:g}.",
                f"Write `{key} = {found.policy[key]:g}` under [{wish.table}].",
                path=wish.key,
            )
    return None
