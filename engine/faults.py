"""Fault injection: named points at which a test can kill a process, to try recovery.

Off, at the cost of one comparison, unless the environment variable ``MARLAAS_FAULTS`` names a folder; worker processes
inherit it, environments do not. A test writes a file named after a point there. The first process to reach the point
often enough removes the file and dies by SIGKILL. The file ``reached`` records process, point and death.
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
        # Engine: a group is complete; nothing of it is stored.
        "GROUP_CLOSED": "group.closed",
        # Engine: its rows are written; their transaction is open.
        "GROUP_INSIDE": "group.inside",
        # Engine: it is stored; the learner does not know yet.
        "GROUP_STORED": "group.stored",
        # Engine: samples of an open play are written; their transaction is open.
        "MEMBERS_INSIDE": "members.inside",
        # Engine: they are stored.
        "MEMBERS_KEPT": "members.kept",
        # Trainer: groups have arrived; nothing of their gradient is added.
        "ACCUMULATE_BEGUN": "accumulate.begun",
        # Trainer: their gradient is added; the engine does not know yet.
        "ACCUMULATE_DONE": "accumulate.done",
        # Trainer: all groups of the step are in; the optimizer has not moved.
        "STEP_READY": "step.ready",
        # Trainer: the state file is open under a temporary name; nothing is in it.
        "STATE_WRITING": "state.writing",
        # Trainer: all of it is written, still under the temporary name.
        "STATE_WRITTEN": "state.written",
        # Trainer: the file has its final name; no row of the database names it.
        "STATE_NAMED": "state.named",
        # Trainer: the step is made in memory and on the disk; the engine does not know yet.
        "STEP_MADE": "step.made",
        # Engine: the state file is there; its transaction has not begun.
        "COMMIT_READY": "commit.ready",
        # Engine: step, version, consumed groups and metrics are written; their transaction is open.
        "COMMIT_INSIDE": "commit.inside",
        # Engine: the step is committed; nobody knows yet.
        "COMMIT_DONE": "commit.done",
        # Engine: the version is committed; the sampler has not been asked to load it.
        "PUBLISH_READY": "publish.ready",
        # Sampler: the version's file is about to be read.
        "SAMPLER_LOADING": "sampler.loading",
        # Sampler: the version is served; the engine does not know yet.
        "SAMPLER_LOADED": "sampler.loaded",
        # Engine: the version is served; no group has begun under it.
        "PUBLISH_DONE": "publish.done",
        # Sampler: a version was unloaded.
        "SAMPLER_RETIRED": "sampler.retired",
        # Engine: sampler and trainer were compared; the result is not stored.
        "CANARY_DONE": "canary.done",
        # Engine: a held-out score is known; it is not stored.
        "EVALUATION_READY": "evaluation.ready",
        # Engine: it is stored.
        "EVALUATION_STORED": "evaluation.stored",
        # Engine: versions are marked as pruned; their files are there.
        "RETAIN_MARKED": "retain.marked",
        # Engine: the first of their files is gone.
        "RETAIN_REMOVED": "retain.removed",
        # Engine: a kept version was written again without its optimizer's moments, under a temporary name.
        "STRIP_WRITTEN": "strip.written",
        # Engine: the file without moments has replaced the one with; the row is unchanged.
        "STRIP_NAMED": "strip.named",
        # Engine: tokens of old trajectories are gone from their rows; the transaction is open.
        "SHRINK_INSIDE": "shrink.inside",
        # Engine: they are gone, and the transaction is committed.
        "SHRINK_DONE": "shrink.done",
        # Engine: all commits so far are flushed to the disk.
        "BARRIER_DONE": "barrier.done",
        # Engine: a policy is about to be opened at its newest version.
        "RECOVER_READY": "recover.ready",
        # Engine: versions that did not verify are void; groups that cannot be trained on have not been removed yet.
        "RECOVER_VOIDED": "recover.voided",
        # Engine: a policy stands at a version that verified.
        "RECOVER_DONE": "recover.done",
        # Trainer: a policy left the memory for the disk; its slot is free.
        "PAGE_OUT": "page.out",
        # Trainer: a policy is in memory again.
        "PAGE_IN": "page.in",
    },
)
"""All points; the comment above each gives what has happened there and what has not."""


class Faults:
    """The faults of one process, read from and recorded in ``folder``."""

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
    """Called once at the start of a process, with its name; does nothing unless the variable names a folder."""
    global _faults
    folder = os.environ.get(VARIABLE)
    if folder and Path(folder).is_dir():
        _faults = Faults(Path(folder), process)


def reach(point: Point) -> None:
    """Mark that the process has reached ``point``; it dies here if the point is armed."""
    if _faults is not None:
        _faults.reach(point)
