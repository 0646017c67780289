"""The messages to a scoring process: a version to load, one episode to score, or the members of one group to compare.

All as JSON. A version has a number, by which it is named from then on. The answers are read in ``wire``.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from marlaas.plugins.host.channel import Record
from marlaas.plugins.host.records import transcript_record
from marlaas.plugins.scoring import Transcript

from ..protocol import EpisodeOutcome, Unscored


def encode_load(number: int, version: int, path: Path, scratch: Path, log: str) -> Record:
    """The message that has a version imported from ``path``. It may write into ``scratch``; what it prints goes to
    ``log``, or where it went before if that is empty."""
    return {
        "op": "load",
        "episode": number,
        "version": version,
        "path": str(path),
        "scratch": str(scratch),
        "log": log,
    }


def encode_score(
    number: int, version: int, environment: str, played: Unscored, transcript: Transcript, timeout: float
) -> Record:
    """The message that has an episode scored; ``timeout`` in seconds."""
    return {
        "op": "score",
        "episode": number,
        "version": version,
        "environment": environment,
        "task": played.task,
        "transcript": transcript_record(transcript),
        "earned": played.earned,
        "timeout": timeout,
    }


def encode_rank(
    number: int, version: int, environment: str, members: Sequence[EpisodeOutcome], timeout: float
) -> Record:
    """The message that has the members of a group compared; ``timeout`` in seconds."""
    return {
        "op": "rank",
        "episode": number,
        "version": version,
        "environment": environment,
        "members": [_member(member) for member in members],
        "timeout": timeout,
    }


def _member(outcome: EpisodeOutcome) -> Record:
    return {
        "task": outcome.task,
        "transcript": transcript_record(outcome.transcript or Transcript({})),
        "rewards": outcome.rewards,
        "parts": outcome.parts,
        "logged": outcome.metrics,
        "invalid": outcome.invalid,
    }
