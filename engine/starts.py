"""Which version ``[policy] start`` of a task file means, and whether a task can begin from it.

Submissions and the home's rows flow in; submissions that know their start by its id flow out. Bound here, when the
task is submitted: which version is the best one may have changed when it starts. Standard library only.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from .adapter_names import choose_at
from .errors import ConfigError
from .store.reader import Reader
from .store.rows import VersionRow
from .store.submissions import Submission


def find_starts(submissions: Sequence[Submission], reader: Reader | None) -> list[Submission]:
    """Bind every start; ``reader`` is None where the home has no database.

    Raises ``AdapterError`` where there is no such version on the disk, ``ConfigError`` where it does not fit. Its base
    needs no look: a home whose adapters are kept has one base only.
    """
    wishes = sorted({wish for submission in submissions if (wish := _wish(submission))})
    if not wishes:
        return list(submissions)
    versions = reader.versions() if reader else []
    found = {wish: choose_at(versions, wish) for wish in wishes}
    policies = {start.task: reader.task_config(start.task)["policy"] for start in found.values()} if reader else {}
    return [_bound(submission, found, policies) for submission in submissions]


def _wish(submission: Submission) -> str:
    return str(submission.config.get("policy", {}).get("start") or "")


def _bound(
    submission: Submission, found: Mapping[str, VersionRow], policies: Mapping[int, Mapping[str, float]]
) -> Submission:
    start = found.get(_wish(submission))
    if start is None:
        return submission
    _check_fits(submission, start, policies[start.task])
    return replace(submission, start=start.id)


def _check_fits(submission: Submission, start: VersionRow, given: Mapping[str, float]) -> None:
    """A version's matrices fit no other rank, and under another alpha they would be another policy."""
    own = submission.config["policy"]
    for key in ("rank", "alpha"):
        if own[key] != given[key]:
            raise ConfigError(
                f"{submission.name!r} begins from version {start.number} of task {start.task}, whose {key} is"
                f" {given[key]:g}, but its own is {own[key]:g}.",
                f"Write `{key} = {given[key]:g}` under [policy].",
            )
