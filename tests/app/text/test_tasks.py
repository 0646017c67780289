"""Words about tasks and their policies."""

from __future__ import annotations

import os
from dataclasses import replace

import psutil
import pytest

from marlaas.app.reading import opened
from marlaas.app.text import tasks
from marlaas.app.text.format import cells
from marlaas.app.text.tasks import (
    Overview,
    awaiting,
    blocking,
    kind,
    liveness,
    names,
    newest_series,
    overview,
    parts,
    policy_and_version,
    queue_order,
    remedy,
    seconds_left,
    shown_reason,
    shown_state,
    tokens_per_second,
)
from marlaas.engine.home.paths import Home
from marlaas.engine.machine.yielding.decision import clock
from marlaas.engine.spec.task import NamedPolicySpec
from marlaas.engine.store.queries.learning import FirstStep
from marlaas.engine.store.rows import EngineRow, EvalRow, PaceRow, TaskRow

from ..filling import HOSTILE, NOW, Filling
from ..rows import task

# How rows read.


@pytest.mark.parametrize(
    ("state", "age", "exists", "word", "text"),
    [
        ("running", 1.0, True, "alive", "alive 1 s ago"),
        ("starting", 1.0, True, "alive", "starting, alive 1 s ago"),
        ("running", 41.0, True, "silent", "silent 41 s"),
        ("running", 41.0, False, "down", "down, last heard 41 s ago"),
        ("running", 1.0, False, "down", "down, last heard 1 s ago"),
        ("stopped", 7260.0, True, "stopped", "stopped 2 h 01 min ago"),
    ],
)
def test_liveness(monkeypatch: pytest.MonkeyPatch, state: str, age: float, exists: bool, word: str, text: str) -> None:
    monkeypatch.setattr(tasks, "process_exists", lambda pid, heard: exists)
    engine = EngineRow(1, 123, state, 0.0, 10_000.0 - age, "tiny", "")
    found = liveness(engine, 10_000.0)
    assert (found.word, found.text) == (word, text)


def test_a_number_that_another_process_has_is_no_silent_engine() -> None:
    """As after a reboot: the number is taken by what began after the engine was last heard."""
    began = psutil.Process().create_time()
    for heard, word in ((began - 3600, "down"), (began + 1, "silent")):
        engine = EngineRow(1, os.getpid(), "running", heard - 60, heard, "tiny", "")
        assert liveness(engine, heard + 7200).word == word


def test_only_the_newest_series_counts() -> None:
    rows = [
        EvalRow(step, "e", 0.5, 0.0, 64, None, {}, series=key)
        for step, key in ((0, "a"), (10, "a"), (20, "b"), (0, "b"))
    ]
    assert [row.step for row in newest_series(rows)] == [0, 20]
    assert newest_series([]) == []


def test_what_moves_comes_first(filling: Filling, home: Home) -> None:
    for state in ("done", "submitted", "queued", "failed", "paused", "running"):
        filling.task(state=state)
    with opened(home) as reader:
        ordered = [task.state for task in sorted(reader.tasks(), key=queue_order)]
    assert ordered == ["running", "paused", "queued", "submitted", "failed", "done"]


REASON = "sums.py:12: NameError: name 'x' is not defined."


def test_a_blocked_task_comes_before_all_others(filling: Filling, home: Home) -> None:
    for state in ("running", "queued", "blocked", "paused"):
        filling.task(state=state)
    with opened(home) as reader:
        ordered = [task.state for task in sorted(reader.tasks(), key=queue_order)]
    assert ordered == ["blocked", "running", "paused", "queued"]


@pytest.mark.parametrize("state", ["submitted", "queued", "running"])
def test_without_an_engine_a_task_waits_for_one(state: str) -> None:
    row = task(1, state=state, reason="8 of 8 slots are busy; it is next")
    assert (shown_state(row, True), shown_reason(row, True)) == (state, row.reason)
    assert (shown_state(row, False), shown_reason(row, False)) == ("waiting", "waiting for the engine")


@pytest.mark.parametrize("state", ["blocked", "paused", "done", "failed", "cancelled"])
def test_what_no_engine_would_move_on_keeps_its_state(state: str) -> None:
    row = task(1, state=state, reason=REASON)
    assert (shown_state(row, False), shown_reason(row, False)) == (state, REASON)


@pytest.mark.parametrize("reason", [REASON, f"a/{'very/' * 30}long/helpers.py:1207: {REASON}"])
def test_file_line_and_cause_are_where_one_looks_first(reason: str) -> None:
    said = blocking(task(1, state="blocked", reason=reason))
    assert "NameError" in said[:60] and ".py:12" in said[:40]
    assert cells(said.partition(": ")[0]) <= 34


def test_a_blocked_task_says_what_to_do() -> None:
    broken, full = task(1, state="blocked", reason=REASON), task(2, state="blocked", reason="waiting for room")
    assert "E opens the file" in remedy(broken) and "goes on by itself" in remedy(broken)
    assert "E opens" not in remedy(full) and "goes on by itself" in remedy(full)
    assert remedy(task(3)) == blocking(task(3)) == ""
    assert blocking(task(4, state="blocked", reason="")) != ""


def test_hostile_reasons_are_one_safe_line() -> None:
    said = blocking(task(1, state="blocked", reason=HOSTILE + "\n\nx.py:3: y"))
    assert said.isprintable() and "\n" not in said


# What stands in place of a curve.


def test_the_first_step_comes_at_the_pace_of_its_episodes() -> None:
    row = task(1, started=NOW - 60)
    assert (
        awaiting(row, FirstStep(12, 16), "reward", NOW)
        == f"First step at about {clock(NOW + 20, NOW)}: 12 of 16 episodes."
    )
    assert awaiting(row, FirstStep(0, 16), "reward", NOW) == "First step: 0 of 16 episodes."
    assert awaiting(task(1, started=NOW - 1), FirstStep(1, 16), "reward", NOW) == "First step: 1 of 16 episodes."


def test_later_a_metric_alone_may_be_missing() -> None:
    assert awaiting(task(1), None, "held-out", NOW) == "No value of held-out yet."


# How long a task still takes.


def test_a_running_task_takes_its_pace() -> None:
    row = replace(task(20), steps=60)
    assert seconds_left(row, PaceRow(2.0, 500.0)) == 80.0
    assert tokens_per_second(row, PaceRow(2.0, 500.0)) == 250.0


# Who the policies of a task are, in words.


def test_foreign_names_are_safe() -> None:
    told = [names([HOSTILE, "x"]), policy_and_version("p", 1, HOSTILE, 3), kind(NamedPolicySpec(frozen=HOSTILE))]
    assert all("\x1b" not in text and "\n" not in text and "\u202e" not in text for text in told)


# The first line's numbers, and what of them fits.

ROW = TaskRow(1, "lab", "sums", "arithmetic", "running", "", 0, 60, 1.0, 0.0, None, None, step=10, reward=0.5)


def test_it_counts_who_runs_and_who_is_done_first() -> None:
    blocked = replace(ROW, id=3, state="blocked", reason_code="blocked")
    tasks = [ROW, replace(ROW, id=2, step=50), blocked, replace(blocked, id=4, state="cancelled")]
    found = overview(tasks, {1: PaceRow(1.0, 100), 2: PaceRow(2.0, 100)}, "tiny", 1_250_000, 42.4, alive=True)
    assert found == Overview("tiny", 1_250_000, 42.4, running=2, blocked=1, next_task=2, next_seconds=20.0)
    assert [part.text for part in parts(found)] == [
        "tiny 1.2M",
        "42 turns/s",
        "● 2 running",
        "■ 1 blocked",
        "task 2 done in 20s",
    ]


def test_without_an_engine_nothing_runs() -> None:
    found = overview([ROW], {1: PaceRow(1.0, 100)}, "tiny", None, 42.0, alive=False)
    assert (found.running, found.turns, found.next_task) == (0, None, None)
    assert [part.text for part in parts(found)] == ["tiny"]
