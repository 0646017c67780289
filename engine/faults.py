"""Fault injection: named points at which a test can kill a process.

Off, at the cost of one comparison, unless ``MARLAAS_FAULTS`` names a folder; workers inherit it. A test writes a file
named after a point. A process that reaches it often enough removes it and dies by SIGKILL; ``reached`` records it.
Standard library only.
"""

from __future__ import annotations

import os
import signal
from collections import Counter
from contextlib import suppress
from enum import StrEnum
from pathlib import Path
from time import time

VARIABLE = "MARLAAS_FAULTS"


Point = StrEnum(
    "Point",
    {
        # Engine: group complete; not stored.
        "GROUP_CLOSED": "group.closed",
        # Engine: rows written; transaction open.
        "GROUP_INSIDE": "group.inside",
        # Engine: stored; unknown to the learner.
        "GROUP_STORED": "group.stored",
        # Engine: open play's samples written; transaction open.
        "MEMBERS_INSIDE": "members.inside",
        # Engine: stored.
        "MEMBERS_KEPT": "members.kept",
        # Trainer: groups arrived; no gradient added.
        "ACCUMULATE_BEGUN": "accumulate.begun",
        # Trainer: gradient added; unknown to the engine.
        "ACCUMULATE_DONE": "accumulate.done",
        # Trainer: step's groups in; optimizer unmoved.
        "STEP_READY": "step.ready",
        # Trainer: state file open under a temporary name; empty.
        "STATE_WRITING": "state.writing",
        # Trainer: written, still temporarily named.
        "STATE_WRITTEN": "state.written",
        # Trainer: final name; no row.
        "STATE_NAMED": "state.named",
        # Trainer: step made; unknown to the engine.
        "STEP_MADE": "step.made",
        # Engine: state file there; transaction not begun.
        "COMMIT_READY": "commit.ready",
        # Engine: step, version, groups, metrics written; transaction open.
        "COMMIT_INSIDE": "commit.inside",
        # Engine: step committed; nobody knows.
        "COMMIT_DONE": "commit.done",
        # Engine: version committed; sampler not asked to load.
        "PUBLISH_READY": "publish.ready",
        # Sampler: about to read the version's file.
        "SAMPLER_LOADING": "sampler.loading",
        # Sampler: version served; unknown to the engine.
        "SAMPLER_LOADED": "sampler.loaded",
        # Engine: version served; no group under it.
        "PUBLISH_DONE": "publish.done",
        # Sampler: version unloaded.
        "SAMPLER_RETIRED": "sampler.retired",
        # Engine: workers compared; not stored.
        "CANARY_DONE": "canary.done",
        # Engine: held-out score known; not stored.
        "EVALUATION_READY": "evaluation.ready",
        # Engine: stored.
        "EVALUATION_STORED": "evaluation.stored",
        # Engine: versions marked pruned; files there.
        "RETAIN_MARKED": "retain.marked",
        # Engine: first file gone.
        "RETAIN_REMOVED": "retain.removed",
        # Engine: version rewritten without moments, temporarily named.
        "STRIP_WRITTEN": "strip.written",
        # Engine: file without moments in place; row unchanged.
        "STRIP_NAMED": "strip.named",
        # Engine: old trajectories' tokens removed; transaction open.
        "SHRINK_INSIDE": "shrink.inside",
        # Engine: removed and committed.
        "SHRINK_DONE": "shrink.done",
        # Engine: all commits flushed to disk.
        "BARRIER_DONE": "barrier.done",
        # Engine: about to open a policy at its newest version.
        "RECOVER_READY": "recover.ready",
        # Engine: unverified versions void; untrainable groups remain.
        "RECOVER_VOIDED": "recover.voided",
        # Engine: policy at a verified version.
        "RECOVER_DONE": "recover.done",
        # Trainer: policy paged to disk; slot free.
        "PAGE_OUT": "page.out",
        # Trainer: policy in memory again.
        "PAGE_IN": "page.in",
    },
)
"""Comments give what has happened, and not."""


class Faults:
    """One process's faults, in ``folder``."""

    def __init__(self, folder: Path, process: str) -> None:
        self._folder = folder
        self._process = process
        self._counts: Counter[tuple[str, str]] = Counter()
        self._record = os.open(folder / "reached", os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)

    def reach(self, point: Point) -> None:
        dies, armed = False, self._folder / point
        with suppress(OSError, ValueError, IndexError):  # not armed, half written, or another process was first
            text = armed.read_text()
            self._counts[point, text] += 1
            if self._counts[point, text] >= int(text.split()[0]):
                armed.unlink()
                dies = True
        line = f"{time():.6f} {os.getpid()} {self._process} {point} {'died' if dies else ''}".rstrip()
        os.write(self._record, f"{line}\n".encode())  # one write, so that lines of processes never mix
        if dies:
            os.kill(os.getpid(), signal.SIGKILL)


_faults: Faults | None = None


def switch_on(process: str) -> None:
    """At a process's start; idle unless the variable names a folder."""
    global _faults
    folder = os.environ.get(VARIABLE)
    if folder and Path(folder).is_dir():
        _faults = Faults(Path(folder), process)


def reach(point: Point) -> None:
    """The process dies here if ``point`` is armed."""
    if _faults is not None:
        _faults.reach(point)
