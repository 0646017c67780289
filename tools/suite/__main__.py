"""``python -m tools.suite``: the whole suite by several processes, and at the end one line of counts, alone.

``python -m tools.suite tests/engine`` runs what lies there; ``--processes`` says how many there are, and pytest gets
all other options. Each process takes one file of tests after another (``tools/suite/order.py``). What one of them
printed is shown where something failed in it. Exit code 1 if a test failed, if a process ended in any other way than by
its tests, or if there were none.
"""

from __future__ import annotations

import argparse
import json
import os
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from .order import Queue, in_order

ROOT = Path(__file__).resolve().parent.parent.parent
EVERY_DAY = "not slow and not libraries and not vllm and not clients and not cluster and not real"
OUTCOMES = ("passed", "failed", "skipped")
ENDED_BY_TESTS = (0, 1, 5)
"""pytest's exit codes where all tests ran, or where there was none for this process; others: interrupted or broken."""
INTERRUPTED = 130
"""Exit code of a run that a person interrupted."""


@dataclass
class Suite:
    """What is to run, and what has become of it so far."""

    queue: Queue
    folder: Path
    counts: Counter[str] = field(default_factory=Counter)
    complaints: list[str] = field(default_factory=list)
    interrupted: bool = False
    done: int = 0
    begun: float = field(default_factory=time.monotonic)

    def __post_init__(self) -> None:
        self._all, self._lock = len(self.queue), threading.Lock()

    def heard(self, file: str, counts: Counter[str]) -> None:
        """A file is through: say so where something failed in it, and how far all are at each tenth of the files."""
        with self._lock:
            self.counts += counts
            if counts["failed"]:
                print(f"{file}: {counts['failed']} failed", flush=True)
            if file:
                tenths = [10 * done // max(1, self._all) for done in (self.done, self.done + 1)]
                self.done += 1
                if tenths[0] < tenths[1]:
                    seconds = time.monotonic() - self.begun
                    print(f"{10 * tenths[1]} % of {self._all} files after {seconds:.0f} s", flush=True)

    def ended(self, code: int, file: str, failed: int, printed: str) -> None:
        """A process has ended, with this file under way if it is named."""
        with self._lock:
            if code:
                print(printed, flush=True)
            if self.interrupted:
                return
            where = f" in {file}" if file else ""
            if code not in ENDED_BY_TESTS:
                self.complain(f"A process did not end by its tests{where}: pytest's exit code was {code}.")
            elif code == 1 and not failed:
                self.complain("A process failed although none of its tests did.")

    def complain(self, what: str) -> None:
        """One more thing went wrong besides failed tests."""
        self.complaints.append(what)
        self.counts["failed"] += 1


def main(words: Sequence[str]) -> int:
    """Run all: a process more than there are cores, since every other one waits for a good part of its time."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    parser = argparse.ArgumentParser(prog="python -m tools.suite")
    parser.add_argument("paths", nargs="*", help="files and folders of tests; all of them unless some are named")
    parser.add_argument("--processes", type=int, default=cores + 1)
    args, options = parser.parse_known_args(words)
    return run(in_order(ROOT, args.paths), ROOT, args.processes, ["-m", EVERY_DAY, *options])


def run(files: list[str], folder: Path, processes: int, options: list[str]) -> int:
    """Run these files, print the counts; the exit code."""
    suite = Suite(Queue(files), folder)
    threads = [
        threading.Thread(target=work, args=(suite, number % 2 == 0, options), daemon=True)
        for number in range(min(processes, len(files)))
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        wait(thread, suite)
    if not suite.interrupted and (left := len(suite.queue)):
        suite.complain(f"Files that nobody ran, since all processes have died: {left}.")
    if not suite.counts.total() and not suite.interrupted:
        suite.complain("There were no tests.")
    for complaint in suite.complaints:
        print(complaint)
    print(", ".join(f"{suite.counts[outcome]} {outcome}" for outcome in OUTCOMES), flush=True)
    return INTERRUPTED if suite.interrupted else int(suite.counts["failed"] > 0)


def wait(thread: threading.Thread, suite: Suite) -> None:
    """Until it has ended; the processes hear Ctrl-C as well, however often it is pressed."""
    while thread.is_alive():
        try:
            thread.join()
        except KeyboardInterrupt:
            suite.interrupted = True
            suite.queue.clear()


def work(suite: Suite, from_front: bool, options: list[str]) -> None:
    """One process, from its start to its end."""
    environment = {"OMP_NUM_THREADS": "1"} | os.environ  # threads of one would spin on the cores of the others
    environment.pop("PYTHONDONTWRITEBYTECODE", None)  # else hundreds of processes each compile all of marlaas
    ours, theirs = socket.socketpair()
    with ours, tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace") as printed:
        with theirs:
            command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "tools.suite.worker"]
            child = subprocess.Popen(
                [*command, "--files-from", str(theirs.fileno()), *options],
                cwd=suite.folder,
                env=environment,
                pass_fds=(theirs.fileno(),),
                stdin=subprocess.DEVNULL,
                stdout=printed,
                stderr=subprocess.STDOUT,
            )
        file, failed = hand_out(suite, ours, from_front)
        code = child.wait()
        printed.seek(0)
        suite.ended(code, file, failed, printed.read())


def hand_out(suite: Suite, line: socket.socket, from_front: bool) -> tuple[str, int]:
    """Give a process one file after another, until it ends; the file that it died with, and how many tests failed."""
    file, failed = "", 0
    with line.makefile("rw", encoding="utf-8") as talk:
        for said in talk:
            counts: Counter[str] = Counter(json.loads(said))
            more = counts.pop("more")
            suite.heard(file, counts)
            failed += counts["failed"]
            file = (suite.queue.take(from_front) or "") if more else ""
            if more:
                talk.write(f"{file}\n")
                talk.flush()
    return file, failed


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
