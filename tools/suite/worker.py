"""A plugin of pytest that runs the files of tests which it is handed, one after another, until there is none.

It loads a file when its turn has come, so that no file is loaded twice, and keeps what tests of a whole session share.
Through a socket it says what became of a file's tests, a line of JSON each, and gets the name of the next file.
"""

from __future__ import annotations

import json
import os
import socket
from collections import Counter
from typing import IO, cast

import pytest

ORDER = ("passed", "skipped", "failed")
"""Outcomes, from the best to the worst."""


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the option for the socket."""
    parser.addoption("--files-from", type=int, help="the number of an open socket that hands out files of tests")


def pytest_configure(config: pytest.Config) -> None:
    """Take over where files are handed out."""
    if (number := config.getoption("--files-from")) is not None:
        os.set_inheritable(number, False)
        config.pluginmanager.register(Worker(socket.socket(fileno=number)))


class Worker:
    """Runs what it is handed, and counts the worst outcome of each test."""

    def __init__(self, line: socket.socket) -> None:
        self._line, self._talk = line, cast(IO[str], line.makefile("rw", encoding="utf-8"))
        self._worst: dict[str, str] = {}
        self._files: dict[str, pytest.File] = {}
        self._running = False

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
        self._running, total = True, 0
        while name := self._next():
            items = list(session.genitems(self._files[name]))
            session.config.hook.pytest_collection_modifyitems(session=session, config=session.config, items=items)
            total += len(items)
            # after a file's last test, what belongs to the session stays
            for item, after in zip(items, [*items[1:], session], strict=False):
                session.config.hook.pytest_runtest_protocol(item=item, nextitem=after)
        session.testscollected = total
        return True

    def _next(self) -> str:
        self._say(more=True)
        return self._talk.readline().strip()

    def _say(self, more: bool) -> None:
        """What has come since the last time; a test that fails once more when a later one begins is counted again."""
        self._talk.write(json.dumps({"more": more, **Counter(self._worst.values())}) + "\n")
        self._talk.flush()
        self._worst.clear()

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Take one of a test's three reports."""
        if report.outcome != "passed" or report.when == "call":
            self._heard(report)

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        """Take the report of a file that cannot be loaded, or is skipped as a whole."""
        if report.outcome != "passed":
            self._heard(report)

    def _heard(self, report: pytest.TestReport | pytest.CollectReport) -> None:
        known = self._worst.get(report.nodeid, "passed")
        self._worst[report.nodeid] = max(known, report.outcome, key=ORDER.index)

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self) -> None:
        """Say the rest; pytest calls this after an interrupt, too."""
        self._say(more=False)
        self._talk.close()
        self._line.close()
