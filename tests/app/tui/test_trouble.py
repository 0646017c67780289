"""Trouble is seen at once: blocked tasks, findings, lost episodes, tasks that wait for an engine, and the way out."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path

import pytest

from marlaas.app.text.format import cells
from marlaas.app.tui.screens.dialogs import Reading
from marlaas.app.tui.widgets.task_charts import MetricList
from marlaas.engine.daemon import control
from marlaas.engine.home.paths import Home
from marlaas.engine.store.queries.reader import Reader
from marlaas.engine.store.rows import LostEpisodes
from marlaas.engine.store.schema import SUMS
from tests.app.driving import Driver, driving
from tests.app.filling import Filling
from tests.app.filling_rollouts import fill_rollouts

REASON = "sums.py:12: NameError: name 'expected_sum' is not defined, on all of 8 instances; rests for 60 s."

SOURCE = "\n" * 11 + "    return expected_sum\n"

ESTIMATE = re.compile(r"\b\d+(s|[mhd]\d\d)\b")
"""A time such as 41s or 3m20."""


@pytest.fixture
def ended() -> int:
    """The number of a process that has ended."""
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    return process.pid


def blocked(filling: Filling, home: Home, made: int = 0) -> int:
    """A blocked task with its broken environment, beside one that runs."""
    filling.engine()
    filling.task(state="running", made=12)
    filling.environment("sums/sums", "failing", REASON)
    home.plugins.mkdir(exist_ok=True)
    (home.plugins / "sums.py").write_text(SOURCE)
    filling.execute("UPDATE environments SET file = 'sums.py', line = 12, path = ?", str(home.plugins / "sums.py"))
    return filling.task(name="sums of five", environment="sums", state="blocked", reason=REASON, made=made)


def row_of(driver: Driver, task: int) -> tuple[str, str]:
    """A task's line in the queue, and the one below it."""
    lines = driver.text().splitlines()
    place = next(place for place, text in enumerate(lines) if place > 2 and text.split()[:1] == [str(task)])
    return lines[place], lines[place + 1]


async def test_a_blocked_row_shouts_and_says_why(home: Home, filling: Filling) -> None:
    task = blocked(filling, home)
    async with driving(home, (80, 24)) as driver:
        first, second = row_of(driver, task)
        assert "■ blocked" in first and "queued" not in first
        assert "sums.py:12: NameError: name 'expected_sum'" in second
        assert cells(second) <= 80 and "NameError" in second.strip()[:60]
        lines = driver.text().splitlines()
        assert "■ 1 blocked" in lines[0]
        assert lines.index(first) < next(place for place, text in enumerate(lines) if "● running" in text)
        assert lines[-1].startswith(" E edit  ⏎ open  p pause "), "what mends it comes first"
        assert all(each in lines[-1] for each in ("a add", "/ filter", "? help", "q quit", "palette"))
        await driver.press("enter")
        keys = driver.text().splitlines()[-1]
        assert keys.startswith(" E edit ") and "? help" in keys
        await driver.press("escape")
        await driver.pilot.resize_terminal(120, 36)
        await driver.read()
        text = driver.text()
        assert "sums.py, line 12  E opens it here" in text and "▸ 12      return expected_sum" in text
        assert "11" in map(str.strip, text.splitlines()) and "newest rollout" not in text
        await driver.change(
            filling, "UPDATE tasks SET state = 'running', reason = '', reason_code = '' WHERE id = ?", task
        )
        assert not any(gone in driver.text() for gone in ("sums.py:12", "blocked", "expected_sum"))
        filling.execute("UPDATE tasks SET state = 'queued', reason_code = 'blocked', reason = 'pig.py:3: x'")
        (home.plugins / "sums.py").unlink()
        await driver.read()
        assert "pig.py:3: x" in row_of(driver, 1)[1] and "E opens it here" not in driver.text()


@pytest.mark.parametrize(("rows", "curve"), [(24, False), (36, True)])
async def test_the_code_stands_where_a_curve_has_no_room(home: Home, filling: Filling, rows: int, curve: bool) -> None:
    for _ in range(12):
        filling.task(made=3)
    blocked(filling, home, made=7)
    async with driving(home, (80, rows)) as driver:
        assert ("return expected_sum" in driver.text()) == (not curve)
        assert ("smoothed" in driver.text()) == curve
        await driver.pilot.resize_terminal(80, 60 - rows)
        await driver.read()
        assert ("smoothed" in driver.text()) == (not curve), "and changes places with it"


async def test_its_view_says_what_to_do(home: Home, filling: Filling) -> None:
    task = blocked(filling, home, made=7)
    async with driving(home, (80, 24)) as driver:
        await driver.open_task(task)
        flat = " ".join(driver.text().split())
        assert "No step yet" not in flat
        assert flat.count("sums.py:12: NameError") == flat.count("E opens the file at this line") == 1
        assert flat.count("goes on by itself") == 1, "what to do is said once"
        assert "▼ Blocked at step 7. Until then learning: held-out" in flat and "Learning:" not in flat


async def test_its_view_has_the_code_until_it_runs(home: Home, filling: Filling) -> None:
    task = blocked(filling, home)
    async with driving(home, (60, 15)) as driver:
        await driver.open_task(task)
        text = driver.text()
        assert "sums.py, line 12  E opens it here" in text and "▸ 12      return expected_sum" in text
        assert "No trajectory" not in text and "Blocked before" not in text, "what is empty, or said above, goes"
        await driver.change(
            filling, "UPDATE tasks SET state = 'running', reason = '', reason_code = '' WHERE id = ?", task
        )
        await driver.settle()
        assert "expected_sum" not in driver.text() and isinstance(driver.app.focused, MetricList)


@pytest.mark.parametrize(
    ("view", "does", "says"), [("queue", "printf 'x = 1\\n' >> $2", "is saved"), ("task", "true", "is as it was")]
)
async def test_the_editor_opens_at_the_line(
    home: Home, filling: Filling, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, view: str, does: str, says: str
) -> None:
    task = blocked(filling, home)
    os.utime(home.plugins / "sums.py", (1.0, 1.0))
    editor, heard = tmp_path / "vi", tmp_path / "heard"
    editor.write_text(f'#!/bin/sh\necho "$@" > {heard}\n{does}\n')
    editor.chmod(0o700)
    monkeypatch.setenv("VISUAL", str(editor))
    async with driving(home) as driver:
        monkeypatch.setattr(driver.app, "suspend", nullcontext)
        driver.app.open_task(task, view)
        await driver.press("E")
        assert f"{home.plugins / 'sums.py'} {says}." in driver.notices()
    assert heard.read_text() == f"+12 {home.plugins / 'sums.py'}\n"


@pytest.mark.parametrize("option", ["readonly", "web"])
async def test_whoever_only_looks_opens_no_editor(
    home: Home, filling: Filling, monkeypatch: pytest.MonkeyPatch, option: str
) -> None:
    blocked(filling, home)
    monkeypatch.setattr("marlaas.app.tui.context.editor.opened", lambda *given: pytest.fail("it was opened"))
    async with driving(home, readonly=option == "readonly", web=option == "web") as driver:
        await driver.press("E")
        assert driver.notices()


KILLED: dict[str, Callable[[Filling, int], object]] = {
    "killed": lambda filling, pid: filling.engine(age=30.0, pid=pid),
    "stopped": lambda filling, pid: filling.engine("stopped", age=30.0),
    "suspended": lambda filling, pid: filling.engine(age=30.0),
}


@pytest.mark.parametrize("how", KILLED)
async def test_without_an_engine_nothing_pretends_to_run(home: Home, filling: Filling, ended: int, how: str) -> None:
    size = (200, 50) if how == "killed" else (80, 24)
    task = filling.task(state="running", made=12)
    filling.engine()
    async with driving(home, size) as driver:
        assert "● running" in row_of(driver, task)[0]
        times = len(ESTIMATE.findall(row_of(driver, task)[0]))
        assert times == (0 if size[0] < 100 else 2), "the time left, and the time so far"
        filling.execute("DELETE FROM engines")
        KILLED[how](filling, ended)
        await driver.read()
        text = driver.text()
        assert "○ waiting" in row_of(driver, task)[0] and "running" not in row_of(driver, task)[0]
        assert "waiting for the engine" in text
        assert len(ESTIMATE.findall(row_of(driver, task)[0])) == max(0, times - 1)
        await driver.press("enter")
        text = driver.text()
        assert "○ waiting" in text and "waiting for the engine" in text and " left " not in text


async def test_s_starts_the_engine_from_every_view(
    home: Home, filling: Filling, ended: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun: list[str] = []
    monkeypatch.setattr(control, "create_database", lambda home: None)
    monkeypatch.setattr(control, "ensure_running", lambda home: begun.append("engine"))
    filling.task(state="running", made=12)
    filling.engine(age=30.0, pid=ended)
    async with driving(home) as driver:
        for place, mode in enumerate(driver.app.views, 1):
            await driver.press(str(place))
            assert "S start" in driver.text().splitlines()[-1], mode.name
            assert "S starts one" in driver.text(), mode.name
            await driver.press("S")
            assert len(begun) == place, mode.name
        filling.execute("DELETE FROM engines")
        filling.engine()
        await driver.press("1")
        await driver.read()
        assert "S start" not in driver.text().splitlines()[-1]
        await driver.press("S")
        assert len(begun) == len(driver.app.views), "one that runs is not started"


def found(filling: Filling, rollouts: list[int], holds: int = 1, code: str = "large_steps") -> None:
    filling.insert(
        "findings",
        policy=1,
        code=code,
        step=8,
        evidence=json.dumps({"moved": 1.5}),
        rollouts=json.dumps(rollouts),
        holds=holds,
        pending=0,
        created=1.0,
    )


async def test_a_mark_a_line_and_the_rollouts(filling: Filling, home: Home) -> None:
    fill_rollouts(filling, 10)
    found(filling, [3, 1, 99999])
    filling.engine()
    async with driving(home, (80, 24)) as driver:
        assert "● running !" in driver.text()
        assert ADVICE in " ".join(driver.text().split()) and "⏎ f: evidence" in driver.text()
        await driver.press("enter")
        assert ADVICE in " ".join(driver.text().split()) and " f: evidence" in driver.text()
        assert "▼ Steps too large at step 8" in driver.text()
        assert driver.text().splitlines()[-1].startswith(" f findings  ⏎ about")
        await driver.press("f")
        await driver.settle()
        assert isinstance(driver.app.screen, Reading)
        text = driver.text()
        assert "what goes wrong in task 1" in text and "! Steps too large at step 8" in text and "1.5 nats" in text
        assert "What to do: Begin a new task" in text and "rollout 3" in text
        for _ in range(60):
            await driver.press("j")
        await driver.settle()
        assert "It is not stored any more." in driver.text()
        await driver.press("escape")
        assert not isinstance(driver.app.screen, Reading)
        filling.execute("UPDATE findings SET holds = 0")
        await driver.press("escape")
        await driver.read()
        assert "running !" not in driver.text()
        await driver.press("enter", "f")
        assert "Steps too large at step 8, over by now" in driver.text()
        filling.execute("DELETE FROM findings")
        await driver.press("escape")
        await driver.read()
        assert "findings" not in driver.text() and "evidence" not in driver.text()
        await driver.press("f")
        assert "Nothing was found to go wrong" in driver.notices()


ADVICE = "Begin a new task with a third of the `learning_rate` or less, or with more groups per step"


TRAIN = {"groups_per_step": 8, "group_size": 8}

RAISED = "flaky.py:9: ValueError: the tool server did not answer"


def fill_flaky(filling: Filling, lost: int = 16, kept: int = 0) -> None:
    """A task of ten steps of 64 episodes that lost ``lost`` more in each, ``kept`` of them as members of its groups."""
    filling.task(environment="flaky", state="done", made=10)
    filling.execute("UPDATE tasks SET config = ?", json.dumps({"train": TRAIN}))
    for step in range(1, 11):
        filling.insert("metrics", policy=1, step=step, name="lost", value=float(lost))
        filling.insert("metrics", policy=1, step=step, name="errors", value=float(kept))
    filling.execute(SUMS)
    file, line, message = RAISED.split(":", 2)
    failure = {"environment": "flaky/flaky", "version": "e1", "file": file, "line": int(line), "message": message[1:]}
    filling.insert("failures", **failure, created=filling.now)
    filling.insert("failures", **{**failure, "environment": "other/sums", "version": "e2"}, created=filling.now + 1)


@pytest.mark.parametrize(("lost", "kept", "of"), [(16, 0, 800), (16, 16, 640), (16, 8, 720)])
def test_they_are_counted_over_all_steps(filling: Filling, lost: int, kept: int, of: int) -> None:
    fill_flaky(filling, lost, kept)
    with Reader(filling.path) as reader:
        assert reader.tasks()[0].lost == LostEpisodes(160, of, RAISED)


async def test_the_queue_and_the_task_show_them(home: Home, filling: Filling) -> None:
    filling.engine()
    fill_flaky(filling)
    said = f"Lost 160 of 800 episodes (20 %): their environment failed, last at {RAISED}."
    async with driving(home, (200, 50)) as driver:
        assert "✓ done !" in driver.text() and said in driver.text()
        await driver.press("enter")
        assert said in driver.text() and "20 % of the episodes lost." in driver.text()
        await driver.press("t")
        before = driver.text()
        await driver.press("f")
        assert "160 episodes failed, but none is stored: groups with failures were played anew" in driver.text()
        assert "conversation" in before and "with failures" not in driver.text().replace("groups with failures", "")
