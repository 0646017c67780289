"""Episodes that an environment lost: counted from what steps recorded, and seen wherever their task is."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import pytest

from marlaas.app.cli.tasks import show_task
from marlaas.app.questions import evidence
from marlaas.app.text.learning import Verdict, state_text, verdict, why
from marlaas.app.text.tasks import lost_words, no_failures
from marlaas.engine.home.paths import Home
from marlaas.engine.store.queries.learning import Track
from marlaas.engine.store.queries.reader import Reader
from marlaas.engine.store.rows import LostEpisodes
from marlaas.engine.store.schema import SUMS

from .driving import driving
from .filling import Filling
from .rows import task

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


def test_a_task_that_lost_none_says_nothing(filling: Filling) -> None:
    fill_flaky(filling, lost=0)
    with Reader(filling.path) as reader:
        row = reader.tasks()[0]
    assert row.lost is None and state_text(row) == "✓ done" and lost_words(row) == why(row) == ""


def test_few_have_no_mark_but_are_counted() -> None:
    row = task(1, state="done", lost=LostEpisodes(3, 6400))
    assert state_text(row) == "✓ done" and why(row) == ""
    assert lost_words(row) == "Lost 3 of 6,400 episodes: their environment failed."


def test_many_are_marked_and_in_the_verdict() -> None:
    row = task(1, state="done", lost=LostEpisodes(1344, 7744, RAISED))
    assert state_text(row) == "✓ done !" and why(row) == "17 % of the episodes lost"
    steps = Track()
    steps.steps.extend(range(1, 41))
    steps.values.extend(0.02 * step for step in range(40))
    found = verdict(evidence(row, (), steps, {}, {}))
    assert found == Verdict("fair", found.words) and found.words.endswith(". 17 % of the episodes lost.")
    whole = verdict(evidence(task(1, state="done"), (), steps, {}, {}))
    assert whole.tone == "good" and "lost" not in whole.words


async def test_the_queue_and_the_task_show_them(home: Home, filling: Filling) -> None:
    filling.engine()
    fill_flaky(filling)
    said = f"Lost 160 of 800 episodes (20 %): their environment failed, last at {RAISED}."
    async with driving(home, (200, 50)) as driver:
        assert "✓ done !" in driver.text() and said in driver.text()
        await driver.press("enter")
        assert said in driver.text() and "20 % of the episodes lost." in driver.text()


async def test_failures_only_says_why_there_are_none(home: Home, filling: Filling) -> None:
    filling.engine()
    fill_flaky(filling)
    async with driving(home, (120, 36)) as driver:
        await driver.press("t")
        before = driver.text()
        await driver.press("f")
        assert "160 episodes failed, but none is stored: groups with failures were played anew" in driver.text()
        assert "conversation" in before and "with failures" not in driver.text().replace("groups with failures", "")


def test_a_task_without_any_has_no_list_of_failures() -> None:
    assert no_failures(None) == no_failures(task(1)) == "No conversation failed."


def test_show_has_a_line_of_them(filling: Filling, capsys: pytest.CaptureFixture[str]) -> None:
    fill_flaky(filling)
    show_task(Home(Path(filling.path).parent), argparse.Namespace(task=1, policy=None, toml=False, json=False))
    assert (
        f"  lost          Lost 160 of 800 episodes (20 %): their environment failed, last at {RAISED}."
        in capsys.readouterr().out
    )
