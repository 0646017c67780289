"""Trouble is seen at once: blocked tasks with file, line and cause, rows that wait for an engine, and the way out."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path

import pytest

from marlaas.app.text.format import cells
from marlaas.app.tui.widgets.task_charts import MetricList
from marlaas.engine.daemon import control
from marlaas.engine.home.paths import Home

from ....seldom import often, seldom
from ...driving import Driver, driving
from ...filling import Filling

SIZES = often([(80, 24)], [(80, 24), (120, 36), (200, 50)])
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


@pytest.mark.parametrize("size", SIZES)
async def test_a_blocked_row_shouts_and_says_why(home: Home, filling: Filling, size: tuple[int, int]) -> None:
    task = blocked(filling, home)
    async with driving(home, size) as driver:
        first, second = row_of(driver, task)
        assert "■ blocked" in first and "queued" not in first
        assert "sums.py:12: NameError: name 'expected_sum'" in second
        assert cells(second) <= size[0] and "NameError" in second.strip()[:60]
        assert "■ 1 blocked" in driver.text().splitlines()[0]
        lines = driver.text().splitlines()
        assert lines.index(first) < next(place for place, text in enumerate(lines) if "● running" in text)


async def test_what_mends_leaves_room_for_the_way_out(home: Home, filling: Filling) -> None:
    blocked(filling, home)
    async with driving(home, (80, 24)) as driver:
        keys = driver.text().splitlines()[-1]
        assert keys.startswith(" E edit  ⏎ open  p pause ")
        assert all(each in keys for each in ("a add", "/ filter", "? help", "q quit", "palette"))
        await driver.press("enter")
        keys = driver.text().splitlines()[-1]
        assert keys.startswith(" E edit ") and "? help" in keys


async def test_the_second_line_goes_with_what_blocked(home: Home, filling: Filling) -> None:
    task = blocked(filling, home)
    async with driving(home) as driver:
        filling.execute("UPDATE tasks SET state = 'running', reason = '', reason_code = '' WHERE id = ?", task)
        await driver.read()
        assert "sums.py:12" not in driver.text() and "blocked" not in driver.text()
        filling.execute("UPDATE tasks SET state = 'queued', reason_code = 'blocked', reason = 'pig.py:3: x'")
        await driver.read()
        assert "pig.py:3: x" in row_of(driver, 1)[1]


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


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("made", [0, 7])
async def test_its_view_says_what_to_do(home: Home, filling: Filling, size: tuple[int, int], made: int) -> None:
    task = blocked(filling, home, made)
    async with driving(home, size) as driver:
        driver.app.open_task(task)
        await driver.settle()
        flat = " ".join(driver.text().split())
        assert "No step yet" not in flat
        assert flat.count("sums.py:12: NameError") == flat.count("E opens the file at this line") == 1
        assert flat.count("goes on by itself") == 1, "what to do is said once"
        assert "Learning:" not in flat and ("▼ Blocked at step 7. Until then learning: held-out" in flat) == bool(made)
        assert "goes on by itself" in flat


@pytest.mark.parametrize("view", ["queue", "task"])
async def test_the_editor_opens_at_the_line(
    home: Home, filling: Filling, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, view: str
) -> None:
    task = blocked(filling, home)
    editor, heard = tmp_path / "vi", tmp_path / "heard"
    editor.write_text(f'#!/bin/sh\necho "$@" > {heard}\n')
    editor.chmod(0o700)
    monkeypatch.setenv("VISUAL", str(editor))
    async with driving(home) as driver:
        monkeypatch.setattr(driver.app, "suspend", nullcontext)
        driver.app.open_task(task, view)
        await driver.press("E")
    assert heard.read_text() == f"+12 {home.plugins / 'sums.py'}\n"


@pytest.mark.parametrize("view", ["queue", "task"])
@pytest.mark.parametrize(("does", "said"), [("printf 'x = 1\\n' >> $2", "is saved"), ("true", "is as it was")])
async def test_whether_the_file_was_saved_is_said(
    home: Home, filling: Filling, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, view: str, does: str, said: str
) -> None:
    task = blocked(filling, home)
    home.plugins.mkdir(exist_ok=True)
    (home.plugins / "sums.py").write_text("")
    os.utime(home.plugins / "sums.py", (1.0, 1.0))
    editor = tmp_path / "vi"
    editor.write_text(f"#!/bin/sh\n{does}\n")
    editor.chmod(0o700)
    monkeypatch.setenv("VISUAL", str(editor))
    async with driving(home) as driver:
        monkeypatch.setattr(driver.app, "suspend", nullcontext)
        driver.app.open_task(task, view)
        await driver.press("E")
        assert f"{home.plugins / 'sums.py'} {said}." in driver.notices()


@pytest.mark.parametrize("option", ["readonly", "web"])
async def test_whoever_only_looks_opens_no_editor(
    home: Home, filling: Filling, monkeypatch: pytest.MonkeyPatch, option: str
) -> None:
    blocked(filling, home)
    monkeypatch.setattr("marlaas.app.tui.context.editor.opened", lambda *given: pytest.fail("it was opened"))
    async with driving(home, readonly=option == "readonly", web=option == "web") as driver:
        await driver.press("E")
        assert driver.notices()


async def test_an_environment_that_is_gone_is_said(home: Home, filling: Filling) -> None:
    filling.engine()
    filling.task(environment="nowhere", state="blocked", reason="There is no environment 'nowhere'.")
    async with driving(home) as driver:
        await driver.press("E")
        assert "There is no environment 'nowhere'" in driver.notices()


KILLED: dict[str, Callable[[Filling, int], object]] = {
    "killed": lambda filling, pid: filling.engine(age=30.0, pid=pid),
    "stopped": lambda filling, pid: filling.engine("stopped", age=30.0),
    "suspended": lambda filling, pid: filling.engine(age=30.0),
}


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("how", KILLED)
async def test_without_an_engine_nothing_pretends_to_run(
    home: Home, filling: Filling, ended: int, size: tuple[int, int], how: str
) -> None:
    task = filling.task(state="running", made=12)
    filling.engine()
    async with driving(home, size) as driver:
        assert "● running" in row_of(driver, task)[0]
        times = len(ESTIMATE.findall(row_of(driver, task)[0]))
        assert times == (0 if size[0] < 100 else 1 if size[0] < 200 else 2), "the time left, and wide the time so far"
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


@pytest.mark.parametrize("size", [(120, 36), seldom((200, 50))])
async def test_the_queue_shows_the_lines_that_are_wrong(home: Home, filling: Filling, size: tuple[int, int]) -> None:
    task = blocked(filling, home)
    async with driving(home, size) as driver:
        text = driver.text()
        assert "sums.py, line 12  E opens it here" in text and "▸ 12      return expected_sum" in text
        assert "11" in map(str.strip, text.splitlines()) and "newest rollout" not in text
        filling.execute("UPDATE tasks SET state = 'running', reason = '', reason_code = '' WHERE id = ?", task)
        await driver.read()
        await driver.settle()
        assert "expected_sum" not in driver.text()


@pytest.mark.parametrize("size", [(60, 15), *SIZES])
async def test_its_view_has_the_code_until_it_runs(home: Home, filling: Filling, size: tuple[int, int]) -> None:
    task = blocked(filling, home)
    async with driving(home, size) as driver:
        driver.app.open_task(task)
        await driver.settle()
        text = driver.text()
        assert "sums.py, line 12  E opens it here" in text and "▸ 12      return expected_sum" in text
        assert "No trajectory" not in text and "Blocked before" not in text, "what is empty, or said above, goes"
        filling.execute("UPDATE tasks SET state = 'running', reason = '', reason_code = '' WHERE id = ?", task)
        await driver.read()
        await driver.settle()
        assert "expected_sum" not in driver.text() and isinstance(driver.app.focused, MetricList)


@pytest.mark.parametrize("size", SIZES)
async def test_libraries_are_a_key_away(home: Home, filling: Filling, size: tuple[int, int]) -> None:
    task = blocked(filling, home)
    why = "sums: needs numpy: allow with `marlaas env allow sums`."
    filling.execute("UPDATE tasks SET reason = ? WHERE id = ?", why, task)
    filling.execute("UPDATE environments SET state = 'waiting', message = ?, file = '', line = 0", why)
    (home.plugins / "sums.py").write_text("import numpy\n\n\nasync def sums(ep):\n    return numpy.sum(1)\n")
    async with driving(home, size) as driver:
        driver.app.open_task(task)
        await driver.settle()
        text = driver.text()
        assert "i in the environments (4) shows its libraries" in " ".join(text.split())
        assert "sums.py  E opens it here" in text and "return numpy.sum(1)" in text and "▸" not in text
        await driver.press("4")
        assert "i allow libraries" in driver.text().splitlines()[-1]


async def test_without_its_file_there_is_none(home: Home, filling: Filling) -> None:
    blocked(filling, home)
    (home.plugins / "sums.py").unlink()
    async with driving(home, (120, 36)) as driver:
        assert "E opens it here" not in driver.text() and "■ blocked" in driver.text()
