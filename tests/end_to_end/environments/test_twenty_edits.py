"""An author edits a plugin twenty times while a task trains on it, and breaks it in every way known.

Nothing is faked: files, engine, processes, model and gradients are real. Two minutes, or five on a busy machine.
"""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from marlaas.engine.store.queries.reader import Reader
from marlaas.engine.store.rows import EnvironmentRow

from ..conftest import PATIENCE, Lab, consumed_once

pytestmark = [pytest.mark.processes, pytest.mark.slow, pytest.mark.timeout(900)]

STEPS = 500
GOOD = "return reply.text[:1].isdigit() + ep.noise.random() / 1000"
PLUGIN = """
import asyncio
from marlaas.plugins import env
{top}

@env(timeout=20)
async def live(ep, pause: float = {pause}):
    "Rewards replies that begin with a digit."
    reply = await ep.ask(f"say {{ep.rng.randint(0, 10**6)}}")
    ep.log(edition={edition})
    await asyncio.sleep(pause)
    {end}
"""
REFUSED = {
    "syntax error": ("def oops(:", "SyntaxError"),
    "import error": ("import nothing_of_that_name", "ModuleNotFoundError"),
    "exit at import": ("raise SystemExit(1)", "SystemExit"),
}
"""What is never served: lines of the file, and what is said of them."""
FAILING = {
    "reward NaN": ('return float("nan")', "must be finite"),
    "reward a string": ('return "1.0"', "must be a number, not str"),
    "reward infinite": ("return 1e400", "must be finite"),
    "reward missing": ("pass", "returned None"),
    "unknown agent": ('return {"agent": 1, "nobody": 0}', "'nobody'"),
    "exception in a tool": ("(lambda: {}['lost'])()", "KeyError"),
    "os._exit": ("import os; os._exit(3)", "code 3"),
    "4 GB": ("return len(bytearray(4 << 30))", "MemoryError"),
}
"""What is served and then fails: last lines of the function, and why the task waits."""


class Author:
    """A person with an editor, who looks at what happens."""

    def __init__(self, lab: Lab) -> None:
        self.lab = lab
        self.path: Path = lab.home.plugins / "live.py"
        self.edition = 0
        self.task = 0

    def text(self, end: str = GOOD, top: str = "", pause: float = 0.5) -> str:
        """The next edition."""
        self.edition += 1
        return PLUGIN.format(top=top, end=end, edition=self.edition, pause=pause)

    def save(self, text: str) -> None:
        """As most editors do: under another name first."""
        unfinished = self.path.with_name(f".{self.path.name}.new")
        unfinished.write_text(text)
        unfinished.replace(self.path)

    def until(self, seen: Callable[[], object], what: str, patience: float = PATIENCE) -> None:
        """Wait for something that the engine, another process, brings about."""
        deadline = time.monotonic() + patience
        while not seen():
            assert time.monotonic() < deadline, f"{what}: {self.lab.row(self.task) if self.task else self.rows()}"
            time.sleep(0.02)

    def rows(self) -> dict[str, EnvironmentRow]:
        """The environments as the screen shows them."""
        with Reader(self.lab.home.database) as reader:
            return {row.name: row for row in reader.environments()}

    def shown(self, state: str, says: str = "") -> None:
        """Wait until the plugin is shown in a state with some words."""

        def seen() -> bool:
            row = self.rows().get(f"{self.path.stem}/live")
            return row is not None and row.state == state and says in (row.message or "")

        self.until(seen, f"{state} {says}")

    def waits(self, says: str) -> None:
        """Wait until the task waits for the environment, and says why."""
        self.until(lambda: says in self.lab.row(self.task).reason, says)
        row = self.lab.row(self.task)
        assert row.state == "blocked", row

    def trains(self, steps: int = 2) -> None:
        """Wait until the task has made further steps."""
        wanted = self.lab.row(self.task).step + steps
        assert wanted < STEPS, "the task must not end before the edits do"
        assert self.lab.until(self.task, wanted).step >= wanted

    def serves(self, text: str) -> None:
        """Save an edition and wait until it serves."""
        before = self.version()
        self.save(text)
        self.until(lambda: self.version() != before, "a newer version")

    def version(self) -> str:
        """What serves."""
        row = self.rows().get(f"{self.path.stem}/live")
        return row.version if row is not None else ""

    def mends(self) -> None:
        """A good edition, which serves and is trained on."""
        self.serves(self.text())
        self.shown("ready")
        self.trains()


def test_twenty_edits(lab: Lab) -> None:
    author = Author(lab)
    author.save(author.text())
    author.shown("ready")
    refuses_a_wrong_parameter(lab)
    author.task = lab.submit(
        "twenty edits", "live", steps=STEPS, train={"patience": 1000}, eval={"prompts": 4, "every": 25}
    )
    author.trains()
    for top, says in REFUSED.values():
        author.save(author.text(top=top))
        author.shown("stale", says)
        author.trains()
    author.save(author.text(top="while True: pass"))  # the import goes on and on, and so does the last good version
    author.trains(10)
    author.mends()
    for end, says in FAILING.values():
        author.save(author.text(end))
        author.waits(says)
        author.mends()
    author.serves(author.text("while True: pass"))
    author.mends()
    author.serves(author.text(f"[print('x' * 100) for _ in range(10_000)]; {GOOD}"))
    author.trains()
    saves_half(author)
    goes_and_comes_back(author)
    links_out(author)
    author.serves(author.text(pause=0.0))
    author.until(lambda: lab.row(author.task).state != "running", "its end", 4 * PATIENCE)
    assert (lab.row(author.task).state, lab.row(author.task).step) == ("done", STEPS)
    assert author.edition >= 20
    consumed_once(lab.home, author.task)
    check_groups(lab, author.task)


def refuses_a_wrong_parameter(lab: Lab) -> None:
    file = lab.home.root / "wrong.toml"
    file.write_text('tenant = "lab"\nname = "w"\nenvironment = "live"\n[environment_config]\npause = "long"\n')
    assert "must be" in lab.marlaas("submit", str(file), code=2)


def saves_half(author: Author) -> None:
    """As editors do that write into the file itself, over a slow network."""
    text = author.text()
    with author.path.open("w") as file:
        file.write(text[: len(text) // 2])
        file.flush()
        author.shown("stale")
        author.trains()
        file.write(text[len(text) // 2 :])
    author.shown("ready")
    author.trains()


def goes_and_comes_back(author: Author) -> None:
    """Deleted, made anew, renamed; then beside a second one of the same name."""
    text = author.path.read_text()
    author.path.unlink()
    author.waits("There is no environment")
    author.path.write_text(text)
    author.trains()
    author.path = author.path.rename(author.path.with_name("alive.py"))
    author.shown("ready")
    author.trains()
    twin = author.path.with_suffix("")
    twin.mkdir()
    (twin / "__init__.py").write_text(author.text())
    author.until(lambda: any(row.state == "hidden" for row in author.rows().values()), "hidden")
    author.trains()
    (twin / "__init__.py").unlink()
    twin.rmdir()


def links_out(author: Author) -> None:
    link = author.path.with_suffix(".txt")
    link.symlink_to("/etc/passwd")
    author.shown("stale", "leads out of the plugin")
    author.trains()
    link.unlink()
    author.shown("ready")


def check_groups(lab: Lab, task: int) -> None:
    """Every stored group was played on exactly one version, and every version is one edition."""
    with sqlite3.connect(f"file:{lab.home.database}?mode=ro", uri=True) as connection:
        rows = connection.execute(
            "SELECT g.id, g.environment_version, json_extract(t.metrics, '$.edition'), t.reward"
            ' FROM groups g JOIN trajectories t ON t."group" = g.id JOIN policies p ON p.id = g.policy'
            " WHERE p.task = ? AND t.status = 'ok'",
            [task],
        ).fetchall()
    connection.close()
    editions: dict[int, set[float]] = {}
    versions: dict[str, set[float]] = {}
    for group, version, edition, reward in rows:
        assert 0 <= reward < 1.1
        editions.setdefault(group, set()).add(edition)
        versions.setdefault(version, set()).add(edition)
    assert all(len(found) == 1 for found in (*editions.values(), *versions.values()))
    assert len(versions) > 10, "the task followed"
