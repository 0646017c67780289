"""Which version or folder ``[policy] start`` of a task file means, and whether a task can begin from it.

Submissions and the home's rows flow in; submissions that know their start by its id flow out. Bound here, when the
task is submitted: which version is the best one may have changed when it starts.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from .adapter_names import choose_at
from .errors import ConfigError
from .spec import start_folder
from .store.reader import Reader
from .store.rows import VersionRow
from .store.submissions import Submission


@dataclass(frozen=True)
class _Start:
    """What somebody means."""

    words: str
    policy: Mapping[str, float]
    """Its rank and alpha."""
    version: int | None = None
    """Its id; None for a folder."""


def find_starts(submissions: Sequence[Submission], reader: Reader | None) -> list[Submission]:
    """Bind every start; ``reader`` is None where the home has no database.

    Raises ``AdapterError`` where there is no such version or folder, ``ConfigError`` where it does not fit. A version's
    base needs no look: a home whose adapters are kept has one base only. A folder's is looked at by the trainer.
    """
    wishes = sorted({_wish(submission) for submission in submissions} - {""})
    named = any(start_folder(wish) is None for wish in wishes)
    versions = reader.versions() if reader and named else []
    found = {wish: _look_up(wish, versions, reader) for wish in wishes}
    return [_bound(submission, found.get(_wish(submission))) for submission in submissions]


def _wish(submission: Submission) -> str:
    return str(submission.config.get("policy", {}).get("start") or "")


def _look_up(wish: str, versions: list[VersionRow], reader: Reader | None) -> _Start:
    folder = start_folder(wish)
    if folder is not None:
        from .adapters.peft_folder import read_peft_folder  # numpy is loaded for those alone who begin from a folder

        header = read_peft_folder(folder).header
        return _Start(str(folder), {"rank": header.rank, "alpha": header.alpha})
    version = choose_at(versions, wish)
    policy = reader.task_config(version.task)["policy"] if reader else {}
    return _Start(f"version {version.number} of task {version.task}", policy, version.id)


def _bound(submission: Submission, start: _Start | None) -> Submission:
    """A version's matrices fit no other rank, and under another alpha they would be another policy."""
    if start is None:
        return submission
    own = submission.config["policy"]
    for key in ("rank", "alpha"):
        if own[key] != start.policy[key]:
            raise ConfigError(
                f"{submission.name!r} begins from {start.words}, whose {key} is {start.policy[key]:g}, but its own is"
                f" {own[key]:g}.",
                f"Write `{key} = {start.policy[key]:g}` under [policy].",
            )
    return replace(submission, start=start.version)
