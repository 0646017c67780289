"""Outcomes and durations of episodes by environment and version, also of unclosed groups."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from ..trajectories import Failure
from .durations import bucket_of
from .protocol import EpisodeOutcome


@dataclass(frozen=True)
class OutcomeCount:
    """Number of episodes that ended in one way."""

    environment: str
    version: str
    status: str
    """ok, skip, timeout, error or cancelled"""
    bucket: int
    episodes: int
    """Below 0: more were taken back than added, because the group's ranking failed later."""


@dataclass(frozen=True)
class LastFailure:
    """Of a version of an environment."""

    environment: str
    version: str
    failure: Failure


@dataclass(frozen=True)
class Counted:
    """Since the last ``take``."""

    outcomes: tuple[OutcomeCount, ...] = ()
    failures: tuple[LastFailure, ...] = ()


class OutcomeCounts:
    """Sums since the last ``take``."""

    def __init__(self) -> None:
        self._episodes: defaultdict[tuple[str, str, str, int], int] = defaultdict(int)
        self._failures: dict[tuple[str, str], Failure] = {}

    def add(self, environment: str, version: str, outcome: EpisodeOutcome) -> None:
        self._episodes[environment, version, outcome.status, bucket_of(outcome.seconds)] += 1
        self._note(environment, version, outcome)

    def overturn(
        self, environment: str, version: str, members: Sequence[EpisodeOutcome], verdict: EpisodeOutcome
    ) -> None:
        for member in members:
            bucket = bucket_of(member.seconds)
            self._episodes[environment, version, member.status, bucket] -= 1
            self._episodes[environment, version, verdict.status, bucket] += 1
        self._note(environment, version, verdict)

    def take(self) -> Counted:
        outcomes = tuple(OutcomeCount(*key, episodes) for key, episodes in self._episodes.items() if episodes)
        failures = tuple(LastFailure(*key, failure) for key, failure in self._failures.items())
        self._episodes.clear()
        self._failures.clear()
        return Counted(outcomes, failures)

    def put_back(self, counted: Counted) -> None:
        for one in counted.outcomes:
            self._episodes[one.environment, one.version, one.status, one.bucket] += one.episodes
        for last in counted.failures:
            self._failures.setdefault((last.environment, last.version), last.failure)

    def _note(self, environment: str, version: str, outcome: EpisodeOutcome) -> None:
        if outcome.failure is not None and outcome.status in ("ok", "error", "timeout"):  # ok: paid ``on_error``
            self._failures[environment, version] = outcome.failure
