"""``python -m tools.suite [PATH …]``: the whole suite by several processes, and at the end one line of counts.

Each process is a pytest with this module as its plugin. It takes one file of tests after another, and loads a file when
its turn has come: with pytest-xdist every process loads them all. Every other process begins with the files whose tests
start processes, because they wait for a good part of their time; the rest begin at the other end. Output is shown of
processes in which something failed. Options that this command does not know go to pytest.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from contextlib import suppress
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
SELDOM = ("slow", "libraries")  # folders whose tests all have their own make target
EVERY_DAY = "not slow and not libraries and not vllm and not clients and not cluster and not real"
ORDER = ("passed", "skipped", "failed")  # outcomes, from the best to the worst
VARIABLE = "MARLAAS_SUITE"  # has a process's number, and the folder that all processes share


def main(words: Sequence[str]) -> int:
    """Run the files in a process more than there are cores."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    parser = argparse.ArgumentParser(prog="python -m tools.suite")
    parser.add_argument("paths", nargs="*", help="files and folders of tests; all of them unless some are named")
    parser.add_argument("--processes", type=int, default=cores + 1)
    args, options = parser.parse_known_args(words)
    return run(in_order(ROOT, args.paths), ROOT, args.processes, ["-m", EVERY_DAY, *options])


def in_order(root: Path, under: Collection[str] = ()) -> list[str]:
    """Test files of every day, relative to ``root``: those that start processes first, whole programs before all."""
    tests, named = root / "tests", {root / path for path in under}
    files = [
        path
        for path in tests.rglob("test_*.py")
        if path.relative_to(tests).parts[0] not in SELDOM and (not named or named & {path, *path.parents})
    ]
    waiting = {path for path in files if "mark.processes" in path.read_text("utf-8")}
    files.sort(key=lambda path: (path not in waiting, path in waiting and "end_to_end" not in path.parts, path))
    return [str(path.relative_to(root)) for path in files]


def run(files: list[str], root: Path, processes: int, options: list[str]) -> int:
    """Run these files and print the counts; 1 if a test failed, a process died, or there were no tests."""
    environment = {"OMP_NUM_THREADS": "1"} | os.environ  # threads of one would spin on the cores of the others
    environment.pop("PYTHONDONTWRITEBYTECODE", None)  # else hundreds of processes each compile all of marlaas
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "tools.suite", *options]
    counts, interrupted, nothing = Counter({outcome: 0 for outcome in ORDER}), False, subprocess.DEVNULL
    with tempfile.TemporaryDirectory(prefix="marlaas-suite-") as name:
        folder, children, begun, shown = Path(name), [], time.monotonic(), 0
        (folder / "files").write_text(json.dumps(files), encoding="utf-8")
        for number in range(min(processes, len(files))):
            variables = environment | {VARIABLE: f"{number} {name}"}
            with open(folder / f"{number}.txt", "wb") as out:
                children.append(
                    subprocess.Popen(command, cwd=root, env=variables, stdin=nothing, stdout=out, stderr=out)
                )
        while any(child.poll() is None for child in children):
            try:
                time.sleep(0.2)
            except KeyboardInterrupt:  # the processes hear it as well
                interrupted = True
            if (tenths := 10 * sum(1 for _ in folder.glob("taken-*")) // max(1, len(files))) > shown:
                shown = tenths
                print(f"{10 * shown} % of {len(files)} files begun after {time.monotonic() - begun:.0f} s", flush=True)
        for number, child in enumerate(children):
            results = folder / f"{number}.json"
            found = Counter(json.loads(results.read_text(encoding="utf-8"))) if results.exists() else Counter()
            counts.update(found)
            if child.returncode:
                print((folder / f"{number}.txt").read_text(encoding="utf-8", errors="replace"), flush=True)
            if not interrupted and child.returncode not in ((0, 1, 5) if found["failed"] else (0, 5)):
                last = (folder / f"{number}.last").read_text() if (folder / f"{number}.last").exists() else "no file"
                print(f"A process did not end by its tests, in {last}: its exit code was {child.returncode}.")
                counts["failed"] += 1
        left = len(files) - sum(1 for _ in folder.glob("taken-*"))
    if not interrupted and (left or not counts.total()):
        print(f"Files that nobody ran: {left}." if left else "There were no tests.")
        counts["failed"] += 1
    print(", ".join(f"{counts[outcome]} {outcome}" for outcome in ("passed", "failed", "skipped")), flush=True)
    return 130 if interrupted else int(counts["failed"] > 0)


def pytest_configure(config: pytest.Config) -> None:
    """Take over if this pytest is one of the suite's."""
    if value := os.environ.pop(VARIABLE, ""):
        number, _, folder = value.partition(" ")
        config.pluginmanager.register(Worker(Path(folder), int(number)))


class Worker:
    """Runs one file after another inside a pytest, and writes down the worst outcome of each test."""

    def __init__(self, folder: Path, number: int) -> None:
        self._folder, self._number, self._running = folder, number, False
        self._outcomes: dict[tuple[str, str], str] = {}
        self._files: dict[str, pytest.File] = {}
        self._file = ""

    @pytest.hookimpl(tryfirst=True)
    def pytest_make_collect_report(self, collector: pytest.Collector) -> pytest.CollectReport | None:
        """Remember files as they are found, and load none before its turn has come."""
        if self._running or not isinstance(collector, pytest.File):
            return None
        self._files[str(collector.path.relative_to(collector.config.rootpath))] = collector
        return pytest.CollectReport(collector.nodeid, "passed", None, [])

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        """Until there is no file any more."""
        self._running = True
        for file in self._taken():
            self._file = file
            items = list(session.genitems(self._files[file]))
            session.config.hook.pytest_collection_modifyitems(session=session, config=session.config, items=items)
            session.testscollected += len(items)
            # after a file's last test, what belongs to the session stays
            for item, after in zip(items, [*items[1:], session], strict=False):
                session.config.hook.pytest_runtest_protocol(item=item, nextitem=after)
            self.pytest_sessionfinish()
        return True

    def _taken(self) -> Iterator[str]:
        files = list(enumerate(json.loads((self._folder / "files").read_text(encoding="utf-8"))))
        for place, file in reversed(files) if self._number % 2 else files:
            with suppress(FileExistsError), open(self._folder / f"taken-{place}", "x"):  # only one process can make it
                (self._folder / f"{self._number}.last").write_text(file)
                yield file

    def pytest_runtest_logreport(self, report: pytest.TestReport | pytest.CollectReport) -> None:
        """Take one of a test's three reports, or that of a file that cannot be loaded or is skipped."""
        if report.outcome != "passed" or report.when == "call":
            known = self._outcomes.get((self._file, report.nodeid), "passed")
            self._outcomes[self._file, report.nodeid] = max(known, report.outcome, key=ORDER.index)

    pytest_collectreport = pytest_runtest_logreport

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self) -> None:
        """Write the counts so far; pytest calls this at the end, after an interrupt, too."""
        counts = json.dumps(Counter(self._outcomes.values()))
        (self._folder / f"{self._number}.json").write_text(counts, encoding="utf-8")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
