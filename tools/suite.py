"""``python -m tools.suite``: the whole suite in two rounds, and one line of counts at the end, alone on its line.

First tests of pure code, then those that start processes, a file of them at a time on each core. The second round runs
also where the first is red. Exit code 1 if a test failed, or if a round ended in any other way than by its tests. As a
plugin of pytest (``-p tools.suite --tally FILE``) it counts the tests of a round.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
LONG = ROOT / "tests" / "end_to_end"
EVERY_DAY = "not slow and not libraries and not vllm and not clients and not cluster"
OUTCOMES = ("passed", "failed", "skipped")
ENDED_BY_TESTS = (0, 1)
"""pytest's exit codes where all tests ran; others: interrupted, broken, or nothing was collected."""
INTERRUPTED = 130
"""Exit code of a run that a person interrupted."""


@dataclass(frozen=True)
class Round:
    """The outcome of one call of pytest."""

    code: int
    counts: Counter[str]
    interrupted: bool

    @property
    def complaint(self) -> str:
        """What went wrong in the round besides failed tests; empty for nothing."""
        if self.code not in ENDED_BY_TESTS:
            return f"A round did not end by its tests: pytest's exit code was {self.code}."
        if self.code and not self.counts["failed"]:
            return "A round failed although none of its tests did."
        return "" if sum(self.counts.values()) else "A round had no tests."


def main() -> int:
    """Run both rounds.

    A test of screens waits for a small part of its time, and one of processes for a third of it: so one worker more
    than there are cores runs the first, and two more run the others.
    """
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    pure = ["-n", str(cores + 1), "--dist", "worksteal", "-m", f"not processes and {EVERY_DAY}"]
    by_file = ["-n", str(cores + 2), "--dist", "loadfile", "--no-loadscope-reorder"]
    processes = [*by_file, "-m", f"processes and {EVERY_DAY}", *files_with_processes()]
    return rounds([pure, processes], ROOT)


def files_with_processes() -> list[str]:
    """Test files with the mark, so that no worker of the second round loads the others.

    The long ones come first, so that no core waits for another at the end.
    """
    paths = [path for path in (ROOT / "tests").rglob("test_*.py") if "mark.processes" in path.read_text("utf-8")]
    return [str(path.relative_to(ROOT)) for path in sorted(paths, key=lambda path: (LONG not in path.parents, path))]


def rounds(calls: Sequence[Sequence[str]], folder: Path) -> int:
    """Call pytest with each of these arguments and print the counts; the exit code."""
    counts: Counter[str] = Counter()
    complaints = []
    code = 0
    for call in calls:
        done = run(call, folder)
        counts += done.counts
        if done.interrupted:
            code = INTERRUPTED
            break
        if done.complaint:
            complaints.append(done.complaint)
            counts["failed"] += not done.counts["failed"]
        code = 1 if done.code or done.complaint else code
    for complaint in complaints:
        print(complaint)
    print(", ".join(f"{counts[outcome]} {outcome}" for outcome in OUTCOMES), flush=True)
    return code


def run(call: Sequence[str], folder: Path) -> Round:
    """Run one round, in a process of its own; pytest itself hears an interrupt as well."""
    environment = dict(os.environ)
    environment.pop("PYTHONDONTWRITEBYTECODE", None)  # else hundreds of processes each compile all of marlaas
    with tempfile.TemporaryDirectory() as scratch:
        tally = Path(scratch, "tally.json")
        command = [sys.executable, "-m", "pytest", "-q", "-p", "tools.suite", "--tally", str(tally), *call]
        with subprocess.Popen(command, cwd=folder, env=environment) as child:
            code, interrupted = ended(child)
        counts = Counter(json.loads(tally.read_text())) if tally.exists() else Counter()
    return Round(code, counts, interrupted)


def ended(child: subprocess.Popen[bytes]) -> tuple[int, bool]:
    """The exit code of the child, and whether somebody has pressed Ctrl-C, however often."""
    interrupted = False
    while True:
        try:
            return child.wait(), interrupted
        except KeyboardInterrupt:
            interrupted = True


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the option for the file of counts."""
    parser.addoption("--tally", type=Path, help="write the number of tests by outcome into this file")


def pytest_configure(config: pytest.Config) -> None:
    """Count only in the process that hears of every test."""
    if config.getoption("tally") and not hasattr(config, "workerinput"):
        config.pluginmanager.register(Tally(config.getoption("tally")))


class Tally:
    """The worst outcome that each test reported."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.worst: dict[str, str] = {}

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Take one of a test's three reports."""
        if report.outcome != "passed" or report.when == "call":
            self._heard(report)

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        """Take the report of a file that cannot be loaded, or is skipped as a whole."""
        if report.outcome != "passed":
            self._heard(report)

    def _heard(self, report: pytest.TestReport | pytest.CollectReport) -> None:
        order = ("passed", "skipped", "failed")
        known = self.worst.get(report.nodeid, "passed")
        self.worst[report.nodeid] = max(known, report.outcome, key=order.index)

    def pytest_sessionfinish(self) -> None:
        """Write the counts; pytest calls this after an interrupt, too."""
        self.path.write_text(json.dumps(Counter(self.worst.values())))


if __name__ == "__main__":
    sys.exit(main())
