"""One home and its engine, driven from outside as its users do: submitted to, watched, killed, started again."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path

import psutil

from marlaas.engine.daemon import control, holder
from marlaas.engine.errors import EngineUnreachable
from marlaas.engine.faults import VARIABLE
from marlaas.engine.home import Home
from marlaas.engine.store import Reader, TaskRow

from ..task_rows import tasks_of
from .tasks import TaskFile

PROCESSES = {"engine": "", "rollout": "rollout", "training": "training", "environment": "marlaas.plugins.host"}
"""What may be killed, with the word of its command line that tells it from the engine's other children."""
START_SECONDS = 90.0


@dataclass
class Lab:
    """A home in a folder of its own."""

    home: Home
    files: dict[int, TaskFile] = field(default_factory=dict)
    """What was submitted, by the task's number."""
    seen: set[tuple[int, int, str, str]] = field(default_factory=set)
    """(task, number, name, checksum) of every committed version that was ever looked at."""
    resumed: int = 0

    @classmethod
    def make(cls, root: Path, token_steps: int, faults: bool) -> Lab:
        """A new home, whose engines can be made to die at named points if ``faults``."""
        lab = cls(Home(root).create())
        settings = f"[training]\nslots = 3\n[disk]\nreserve_gb = 0\ntoken_steps = {token_steps}\n"
        lab.home.config.write_text(settings)
        lab.folder.mkdir()
        os.environ.pop(VARIABLE, None)
        if faults:
            os.environ[VARIABLE] = str(lab.folder)
        return lab

    @property
    def folder(self) -> Path:
        """Where faults are armed and recorded."""
        return self.home.root / "faults"

    def submit(self, files: list[TaskFile]) -> None:
        """Hand in task files by the command line, with numbers in their order."""
        paths = []
        for file in files:
            path = self.home.root / f"{file.name}.toml"
            path.write_text(file.text)
            paths.append(str(path))
        before = {row.id for row in self.rows()}
        self.start()
        self.command("submit", *paths)
        new = sorted(row.id for row in self.rows() if row.id not in before)
        self.files.update(zip(new, files, strict=True))

    def command(self, *words: str) -> None:
        """Run ``marlaas``; raises ``RuntimeError`` with what it said if it fails."""
        line = [sys.executable, "-P", "-m", "marlaas.app.cli.main", "--home", str(self.home.root), *words]
        done = subprocess.run(line, capture_output=True, text=True, timeout=600, stdin=subprocess.DEVNULL)
        if done.returncode:
            raise RuntimeError(f"marlaas {' '.join(words)} ended with {done.returncode}: {done.stderr.strip()}")

    def start(self) -> None:
        """Make an engine serve; one that dies meanwhile is started again."""
        deadline = time.monotonic() + START_SECONDS
        while True:
            try:
                return control.ensure_running(self.home)
            except EngineUnreachable:
                if time.monotonic() > deadline:
                    raise

    def rows(self) -> list[TaskRow]:
        """All tasks."""
        return tasks_of(self.home)

    def look(self) -> list[TaskRow]:
        """All tasks; also remembers what is committed, and resumes tasks that paused because workers died."""
        with Reader(self.home.database) as reader:
            rows, versions = reader.tasks(), reader.versions()
        self.seen |= {(v.task, v.number, v.name, v.checksum) for v in versions}
        for row in rows:
            if row.state == "paused" and row.reason.startswith("Workers died"):
                with contextlib.suppress(RuntimeError):  # the engine died before it answered: the next look tries again
                    self.command("resume", str(row.id))
                    self.resumed += 1
        return rows

    def lost(self) -> list[str]:
        """Versions that were committed once and are gone."""
        with Reader(self.home.database) as reader:
            there = {(v.task, v.number, v.name, v.checksum) for v in reader.versions()}
        return [name for _, _, name, _ in sorted(self.seen - there)]

    def kill(self, process: str) -> bool:
        """``kill -9`` one process of the engine, or itself; False if there is none."""
        pid = holder(self.home.lock)
        if not pid:
            return False
        if process == "engine":
            victims = [pid]
        else:
            victims = [child.pid for child in _children(pid) if PROCESSES[process] in _words(child)][:1]
        for victim in victims:
            with contextlib.suppress(ProcessLookupError):
                os.kill(victim, signal.SIGKILL)
        return bool(victims)

    def checksums(self, task: int) -> list[str]:
        """Checksums of all versions of a task, oldest first."""
        with Reader(self.home.database) as reader:
            return [version.checksum for version in reversed(reader.versions(task))]

    def stop(self) -> None:
        """End the engine in order."""
        control.stop(self.home)


def _children(pid: int) -> list[psutil.Process]:
    with contextlib.suppress(psutil.NoSuchProcess):
        return psutil.Process(pid).children(recursive=True)
    return []


def _words(process: psutil.Process) -> list[str]:
    with contextlib.suppress(psutil.NoSuchProcess):
        return process.cmdline()
    return []
