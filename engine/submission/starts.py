"""Finds the versions and folders that a task file refers to: where training begins, who plays along, what is measured.

Versions are bound by id when the task is submitted: which one is the best may have changed when it starts.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from ..errors import ConfigError
from ..spec import BASE, TaskSpec, agent_map_of, inside, parse, start_folder
from ..store import Borrowed, Reader, Submission, VersionRow
from .version_names import choose_at


@dataclass(frozen=True)
class Reference:
    """Words in a task file that mean a version or folder, and what it is for."""

    words: str
    table: str
    """The table of the task file that they are in."""
    rank: int = 0
    """Rank of the adapter whose training begins from it; 0: it is only played with."""
    alpha: float = 0.0


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
    yield from (Reference(words, "versions") for words in spec.versions if words != BASE)
    for name, policy in agent_map_of(spec).policies.items():
        table = f"policies.{name}" if spec.policies else "policy"
        if policy.start:
            yield Reference(policy.start, table, policy.rank, policy.alpha)
        if policy.frozen and policy.frozen != BASE and inside(policy.frozen, spec) is None:
            yield Reference(policy.frozen, table)
    for words in spec.eval.agents.values():
        if words != BASE and words not in spec.policies and inside(words, spec) is None:
            yield Reference(words, "eval.agents")


def find_starts(submissions: Sequence[Submission], reader: Reader | None) -> list[Submission]:
    """Bind every reference; ``reader`` is None where the home has no database.

    Raises ``AdapterError`` where there is no such version or folder, ``ConfigError`` where it does not fit. A version's
    base is not checked: all adapters of a home have the same. A folder's base is checked by the trainer.
    """
    wishes = [list(references(parse(submission.config, submission.name))) for submission in submissions]
    said = sorted({wish.words for own in wishes for wish in own})
    named = any(start_folder(words) is None for words in said)
    versions = reader.versions() if reader and named else []
    found = {words: _look_up(words, versions, reader) for words in said}
    return [_bound(submission, own, found) for submission, own in zip(submissions, wishes, strict=True)]


def _look_up(wish: str, versions: list[VersionRow], reader: Reader | None) -> _Found:
    folder = start_folder(wish)
    if folder is not None:
        from ..adapters import read_peft_folder  # loads numpy, which only a start from a folder needs

        header = read_peft_folder(folder).header
        return _Found(str(folder), {"rank": header.rank, "alpha": header.alpha})
    version = choose_at(versions, wish)
    config = reader.task_config(version.task) if reader else {}
    policy = config.get("policies", {}).get(version.policy) or config.get("policy", {})
    return _Found(f"version {version.number} of task {version.task}", policy, version.id)


def _bound(submission: Submission, wishes: Sequence[Reference], found: Mapping[str, _Found]) -> Submission:
    for wish in wishes:
        _check(submission, wish, found[wish.words])
    borrowed: dict[str, Borrowed] = {}
    for wish in wishes:
        version = found[wish.words].version
        if version is not None:
            plays = not wish.rank or (wish.words in borrowed and borrowed[wish.words].plays)
            borrowed[wish.words] = Borrowed(wish.words, version, plays)
    return replace(submission, borrowed=tuple(borrowed.values()))


def _check(submission: Submission, wish: Reference, found: _Found) -> None:
    """Refuse another rank, which the matrices do not fit, and another alpha, which would make it another policy."""
    if not wish.rank:
        return
    for key, own in (("rank", wish.rank), ("alpha", wish.alpha)):
        if own != found.policy[key]:
            raise ConfigError(
                f"{submission.name!r} begins from {found.words}, whose {key} is {found.policy[key]:g}, but its own is"
                f" {own:g}.",
                f"Write `{key} = {found.policy[key]:g}` under [{wish.table}].",
            )
