"""The feed reads what changed, and survives whatever happens to the database."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from marlaas.app.lists.lines import Learner
from marlaas.app.questions import PreviewAnswer, PreviewQuestion
from marlaas.app.tui.context import feed as module
from marlaas.app.tui.context.feed import Feed
from marlaas.engine.devices.software import LlamaBuild
from marlaas.engine.home.paths import Home

from ...driving import driving
from ...filling import NOW, Filling


@pytest.fixture
def feed(home: Home) -> Iterator[Feed]:
    feed = Feed(home, clock=lambda: NOW)
    yield feed
    feed.close()


def test_no_database_is_an_empty_queue_and_no_problem(feed: Feed) -> None:
    snapshot = feed.poll()
    assert snapshot.tasks == () and snapshot.problem == ""


def test_a_database_that_appears_is_read(feed: Feed, home: Home) -> None:
    feed.poll()
    Filling(home.database).task(made=3)
    snapshot = feed.poll()
    assert [task.step for task in snapshot.tasks] == [3] and len(snapshot.rewards[1]) == 3


def test_nothing_is_read_twice(feed: Feed, filling: Filling) -> None:
    filling.task(made=3)
    first, second = feed.poll(), feed.poll()
    assert second.tasks is first.tasks
    filling.execute("UPDATE tasks SET state = 'paused'")
    third = feed.poll()
    assert third.tasks[0].state == "paused" and third.rewards[1] is first.rewards[1]


def test_another_question_reads_its_answer_alone(feed: Feed, filling: Filling) -> None:
    filling.task(made=3)
    first = feed.poll()
    feed.ask(PreviewQuestion((Learner(1),)))
    second = feed.poll()
    assert second.tasks is first.tasks and second.question == PreviewQuestion((Learner(1),))
    assert isinstance(second.answer, PreviewAnswer) and list(second.answer.curves) == [Learner(1)]
    assert feed.poll().answer is second.answer
    filling.execute("UPDATE policies SET step = 4")
    third = feed.poll()
    assert isinstance(third.answer, PreviewAnswer) and third.tasks is not first.tasks
    own = Learner(1)
    assert third.answer.curves[own].track("reward") is second.answer.curves[own].track("reward"), (
        "no new step: the same"
    )
    feed.ask(None)
    assert feed.poll().answer is None


def test_the_first_line_has_its_numbers(feed: Feed, filling: Filling) -> None:
    assert feed.poll().parameters is None
    filling.engine()
    snapshot = feed.poll()
    assert snapshot.turns is None and snapshot.parameters is not None and 1e4 < snapshot.parameters < 1e8
    filling.execute("UPDATE engines SET base = ?", "[/base]\x00 of nobody")
    assert feed.poll().parameters is None


def test_a_damaged_database_is_a_problem_that_passes(feed: Feed, filling: Filling, home: Home) -> None:
    filling.task(made=3)
    good = feed.poll()
    whole = home.database.read_bytes()
    replace(home.database, b"this is no database" * 1000)
    bad = feed.poll()
    assert "cannot be read" in bad.problem and bad.tasks == good.tasks
    replace(home.database, whole)
    assert feed.poll().problem == ""


def test_a_deleted_database_empties_the_queue(feed: Feed, filling: Filling, home: Home) -> None:
    filling.task(made=3)
    feed.poll()
    home.database.unlink()
    assert feed.poll().tasks == ()


def test_a_database_that_has_gone_is_missed(feed: Feed, filling: Filling, home: Home) -> None:
    filling.task(made=3)
    feed.poll()
    home.database.unlink()
    assert "has gone" in feed.poll().problem
    Filling(home.database)
    assert feed.poll().problem == ""


def test_a_newer_database_is_a_problem_while_open(feed: Feed, filling: Filling) -> None:
    filling.task(made=3)
    assert feed.poll().problem == ""
    filling.insert("_sqlite_migrations", migration_set="marlaas", name="m999_future", applied_at="")
    assert "Update marlaas" in feed.poll().problem


def replace(path: Path, content: bytes) -> None:
    for old in path.parent.glob(f"{path.name}*"):
        old.unlink()
    path.write_bytes(content)


def test_outcomes_come_once(feed: Feed, filling: Filling) -> None:
    filling.task()
    number = filling.insert("commands", kind="pause", task=1, created=NOW)
    feed.expect(number)
    assert feed.poll().outcomes == {}
    filling.execute("UPDATE commands SET done = 1, outcome = 'no'")
    assert feed.poll().outcomes == {number: "no"}
    assert feed.poll().outcomes == {}


async def test_a_problem_is_in_the_status_line(home: Home) -> None:
    home.root.mkdir()
    home.database.write_bytes(b"this is no database" * 1000)
    async with driving(home, (80, 24)) as driver:
        assert "! The database cannot be read" in driver.text()
        await driver.press("j", "p", "q")


def test_what_the_set_up_still_compiles_is_told_to_its_end(feed: Feed, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where nothing else changes; its good end only where its beginning was told."""
    answers: list[LlamaBuild | None] = [LlamaBuild("done", 30.0, NOW)]
    monkeypatch.setattr(module, "llama_build", lambda now: answers[0])
    assert feed.poll().note == ""
    answers[0] = LlamaBuild("compiling", 3.0)
    assert feed.poll().note == "compiling llama.cpp in the background, 3 s"
    answers[0] = LlamaBuild("compiling", 4.0)
    assert feed.poll().note.endswith(" 4 s")
    answers[0] = LlamaBuild("done", 30.0, NOW)
    assert feed.poll().note == "llama.cpp is compiled, after 30 s"
