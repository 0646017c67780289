"""What every reader of a home promises, whoever answers, and what views ask of it again and again."""

from __future__ import annotations

import dataclasses
import os
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import pytest

from marlaas.app import questions
from marlaas.app.questions import Question
from marlaas.app.reading import exists, find_task, opened, reading
from marlaas.engine.errors import StoreError, UnknownTask
from marlaas.engine.home.paths import Home
from marlaas.engine.store.queries import episodes, learning, machine
from marlaas.engine.store.queries.learning import KeptVersion, kept_versions
from marlaas.engine.store.queries.machine import EventFilter
from marlaas.engine.store.queries.reader import Reader
from marlaas.engine.store.rows import EvalRow
from tests.app.filling import NOW, Filling
from tests.app.filling_machine import fill_machine, same_machine
from tests.app.filling_policies import fill_duel

TODAY = "2027-01-15"
"""The day of ``NOW``."""

OLD_TASK, DUEL = 1, 2

MEASURED = EvalRow(step=1, environment_version="e1", score=0.75, stderr=0.1, n=4, floor=None, metrics={})
"""The evaluation of the duel, whose only prompt paid 1."""

QUESTIONS: dict[str, Callable[[Reader], Any]] = {
    "tasks": lambda reader: reader.tasks(),
    "task": lambda reader: reader.task(DUEL),
    "known_tasks": lambda reader: reader.known_tasks(),
    "needs": lambda reader: reader.needs(DUEL),
    "warnings": lambda reader: reader.warnings(DUEL),
    "task_config": lambda reader: reader.task_config(DUEL),
    "task_source": lambda reader: reader.task_source(DUEL),
    "tasks_from": lambda reader: reader.tasks_from("name = 'sums'"),
    "past_runs": lambda reader: learning.past_runs(reader, ["arithmetic"], "tiny"),
    "progress": lambda reader: learning.progress(reader, 0.0),
    "tenants": lambda reader: reader.tenants(TODAY),
    "weights": lambda reader: machine.weights(reader),
    "command_outcomes": lambda reader: reader.command_outcomes([1, 2]),
    "rewards": lambda reader: reader.rewards(OLD_TASK),
    "pace": lambda reader: reader.pace(OLD_TASK),
    "steps": lambda reader: reader.steps(OLD_TASK),
    "evals": lambda reader: reader.evals(OLD_TASK),
    "evals_made": lambda reader: learning.evals_made(reader, OLD_TASK),
    "history": lambda reader: learning.history(reader, OLD_TASK, ("reward",)),
    "metric_samples": lambda reader: learning.metric_samples(reader, OLD_TASK),
    "recent_means": lambda reader: learning.recent_means(reader, OLD_TASK),
    "first_step": lambda reader: learning.first_step(reader, OLD_TASK),
    "versions": lambda reader: reader.versions(),
    "kept_marks": lambda reader: learning.kept_marks(reader),
    "kept_versions": lambda reader: learning.kept_versions(reader, [1, 2, 3]),
    "matchups": lambda reader: learning.matchups(reader, DUEL),
    "prompt_scores": lambda reader: learning.prompt_scores(reader, DUEL, MEASURED, "player"),
    "rollout_steps": lambda reader: episodes.rollout_steps(reader, DUEL),
    "group_ids": lambda reader: episodes.group_ids(reader, DUEL),
    "group_ids_numbered": lambda reader: episodes.group_ids_numbered(reader, DUEL, "train", 0),
    "group_rows": lambda reader: episodes.group_rows(reader, episodes.group_ids(reader, DUEL)),
    "conversation_ids": lambda reader: episodes.conversation_ids(reader, DUEL),
    "conversation_rows": lambda reader: episodes.conversation_rows(reader, episodes.conversation_ids(reader, DUEL)),
    "conversation_texts": lambda reader: episodes.conversation_texts(reader, episodes.conversation_ids(reader, DUEL)),
    "conversation": lambda reader: episodes.conversation(
        reader, next(iter(episodes.conversation_ids(reader, DUEL)), 0)
    ),
    "episode": lambda reader: episodes.episode(reader, next(iter(episodes.conversation_ids(reader, DUEL)), 0)),
    "trajectories": lambda reader: reader.trajectories(DUEL),
    "newest_group": lambda reader: reader.newest_group(DUEL),
    "newest_rollout": lambda reader: reader.newest_rollout(DUEL),
    "recorded_groups": lambda reader: episodes.recorded_groups(reader, DUEL, "train", 3),
    "environments": lambda reader: reader.environments(),
    "environment_use": lambda reader: machine.environment_use(reader, NOW),
    "events": lambda reader: machine.newest_events(reader),
    "event_ids": lambda reader: machine.event_ids(reader, EventFilter()),
    "event_rows": lambda reader: machine.event_rows(reader, machine.event_ids(reader, EventFilter())),
    "newest_events": lambda reader: machine.newest_events(reader, EventFilter()),
    "event_bounds": lambda reader: machine.event_bounds(reader),
    "engine": lambda reader: reader.engine(),
    "workers": lambda reader: reader.workers(),
    "devices": lambda reader: machine.devices(reader),
    "nodes": lambda reader: machine.nodes(reader),
    "drained_nodes": lambda reader: machine.drained_nodes(reader),
    "api_state": lambda reader: reader.api_state(),
    "api_keys": lambda reader: reader.api_keys(),
    "given_names": lambda reader: learning.given_names(reader),
    "newest_samples": lambda reader: machine.newest_samples(reader),
    "stage_spans": lambda reader: machine.stage_spans(reader, 0, 60),
    "stage_totals": lambda reader: machine.stage_totals(reader, 0),
    "stages": lambda reader: machine.stages(reader, 0),
    "turn_rate": lambda reader: machine.turn_rate(reader),
    "steps_since": lambda reader: machine.steps_since(reader, 0),
    "standings": lambda reader: machine.standings(reader),
    "tenants_used": lambda reader: machine.tenants_used(reader, TODAY),
    "tasks_used": lambda reader: machine.tasks_used(reader, TODAY),
}
"""Every question, as a home with one plain task and one of several policies can answer it."""

WITHOUT_ROWS = {"needs", "weights", "command_outcomes", "past_runs", "task_source", "tasks_from", "environment_use"} | {
    "devices", "evals", "evals_made", "stage_spans", "stage_totals", "stages", "standings", "newest_samples",
    "environments", "tasks_used", "kept_marks", "kept_versions", "steps", "history",
    "warnings", "turn_rate", "first_step", "api_state", "api_keys", "given_names",
    "nodes", "drained_nodes",
}  # fmt: skip
"""What that home has nothing of, or not certainly; a machine's home has some of it."""


@pytest.fixture(scope="module")
def duel(tmp_path_factory: pytest.TempPathFactory) -> Home:
    """A home with two tasks; the tests only read it."""
    home = Home(tmp_path_factory.mktemp("duel"))
    filling = fill_duel(home.database)
    filling.event("task 1 started", OLD_TASK)
    filling.event("it broke", level="error")
    return home


@pytest.fixture
def reader(duel: Home) -> Iterator[Reader]:
    with opened(duel) as reader:
        yield reader


def is_frozen(answer: object) -> bool:
    """Rows, and what holds them, or plain values; dataclasses are frozen."""
    if dataclasses.is_dataclass(answer):
        return bool(vars(type(answer))["__dataclass_params__"].frozen)
    if isinstance(answer, Mapping):
        return all(map(is_frozen, answer.values()))
    return not isinstance(answer, Sequence) or isinstance(answer, str) or all(map(is_frozen, answer))


def test_an_empty_home_has_no_answer_and_no_complaint(filling: Filling) -> None:
    with opened(Home(filling.path.parent)) as reader:
        answers = {question: ask(reader) for question, ask in QUESTIONS.items()}
    assert not answers.pop("history").tracks["reward"].steps
    assert not {question for question, answer in answers.items() if answer and answer not in ((0, 0), (0.0, 0.0))}


def test_answers_are_frozen_rows(reader: Reader) -> None:
    for question, ask in QUESTIONS.items():
        answer = ask(reader)
        assert is_frozen(answer) and (question in WITHOUT_ROWS or answer), question
        assert ask(reader) == answer or question == "conversation_texts", f"{question} changes by being asked"


def test_whoever_closed_it_cannot_ask(duel: Home) -> None:
    with opened(duel) as reader:
        pass
    for ask in QUESTIONS.values():
        with pytest.raises(StoreError):
            ask(reader)


def test_one_is_one_of_all(reader: Reader) -> None:
    for task in reader.tasks():
        assert reader.task(task.id) == task == find_task(reader, task.id)
    assert reader.task_config(DUEL)["policies"].keys() >= {"player", "judge"}


def test_an_unknown_task_is_empty(reader: Reader) -> None:
    assert reader.task(99) is None and reader.task_config(99) == {} and reader.steps(99) == []
    assert reader.versions(99) == [] and reader.evals(99) == [] and reader.pace(99) is None
    assert (
        not episodes.group_ids(reader, 99)
        and not episodes.conversation_ids(reader, 99)
        and reader.newest_group(99) == []
    )
    assert (
        episodes.conversation(reader, 10**9) is None
        and machine.newest_events(reader, machine.EventFilter(task=99)) == []
    )
    assert reader.newest_rollout(99) is None and learning.recent_means(reader, 99) == {}
    with pytest.raises(UnknownTask):
        find_task(reader, 99)


def test_it_tells_that_somebody_wrote(home: Home, filling: Filling) -> None:
    with opened(home) as reader:
        before = reader.changed()
        assert reader.changed() == before
        filling.event("something else")
        assert reader.changed() != before and machine.newest_events(reader)[-1].message == "something else"


def test_a_home_that_was_replaced_or_has_gone_is_stale(home: Home, filling: Filling) -> None:
    with opened(home) as reader:
        assert not reader.stale()
        other = home.root / "other"
        shutil.copy(home.database, other)
        os.replace(other, home.database)
        assert reader.stale()
        home.database.unlink()
        assert reader.stale()


def test_where_nothing_was_ever_submitted(home: Home) -> None:
    assert not exists(home)
    with pytest.raises(StoreError):
        opened(home)
    with reading(home) as reader:
        assert reader is None


def test_a_newer_programs_home_is_refused(home: Home, filling: Filling) -> None:
    with opened(home) as reader:
        reader.changed()
        filling.insert("_sqlite_migrations", migration_set="marlaas", name="m9999", applied_at="")
        with pytest.raises(StoreError):
            reader.changed()
    with pytest.raises(StoreError):
        opened(home)


CHANGES = {
    "a size": "UPDATE versions SET size = 7 WHERE policy = 2 AND state = 'committed'",
    "a label": "UPDATE versions SET label = 'best, last' WHERE policy = 2 AND number = 3",
    "a score": "INSERT INTO evals (policy, step, version, environment_version, series, score, stderr, n, created)"
    " SELECT policy, number, id, 'e2', 'e2', 0.9, 0.01, 64, 0 FROM versions WHERE policy = 2 AND number = 3",
    "a state": "UPDATE tasks SET state = 'done' WHERE id = 2",
    "a version that is gone": "UPDATE versions SET state = 'pruned' WHERE policy = 2 AND number = 3",
    "a task without any": "UPDATE versions SET state = 'pruned' WHERE policy = 2",
}


@pytest.mark.parametrize("change", CHANGES)
def test_what_changed_is_read_again(filling: Filling, home: Home, monkeypatch: pytest.MonkeyPatch, change: str) -> None:
    for made in (2, 3, 0):
        filling.task(state="running", made=made)
    asked: list[set[int]] = []

    def reading(reader: Reader, policies: Iterable[int]) -> list[KeptVersion]:
        asked.append(set(policies))
        return kept_versions(reader, policies)

    monkeypatch.setattr(learning, "kept_versions", reading)
    question = Question(questions.adapters, (None, lambda: NOW))
    with opened(home) as reader:
        first = question.read(reader, None)
        assert [(kept.row.task, kept.row.number) for kept in first.versions] == [(3, 0), (2, 3), (2, 2), (1, 2), (1, 1)]
        assert question.read(reader, first) is first
        filling.execute(CHANGES[change])
        second = question.read(reader, first)
        assert second.versions == question.read(reader, None).versions != first.versions
    assert asked[:2] == [{1, 2, 3}, set() if change == "a task without any" else {2}]


@pytest.fixture
def _same_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    same_machine(monkeypatch)


@pytest.mark.usefixtures("_same_machine")
@pytest.mark.parametrize("grain", [1, 60])
def test_reading_on_gives_what_reading_anew_would(home: Home, grain: int) -> None:
    filling = fill_machine(home)
    question = Question(questions.engine, (grain, 30))
    with opened(home) as reader:
        answer = question.read(reader, None)
        for age in range(5):
            for stage in machine.STAGES:
                row = {"incarnation": 3, "stage": stage, "device": "cpu", "begun": NOW + 1.1 * age, "wall": 1.1}
                filling.insert("stages", **row, busy=0.3, ended=age)
            answer = question.read(reader, answer)
            anew = question.read(reader, None)
            oldest = answer.until - 30 * grain
            assert answer.until == pytest.approx(NOW + 1.1 * (age + 1))
            assert [one for one in answer.spans if one.begun >= oldest] == [
                one for one in anew.spans if one.begun >= oldest
            ]
            assert replace(answer, spans=()) == replace(anew, spans=())
            assert answer.now["rollout"].ended == age


def test_files_are_read_on_and_no_other_file_is(home: Home, filling: Filling) -> None:
    home.logs.mkdir(parents=True)
    log = home.logs / "engine.log"
    log.write_text("info: one\nerror: two\n")
    question = Question(questions.logs, (home, "engine.log", EventFilter(level="error")))
    with opened(home) as reader:
        first = question.read(reader, None)
        assert first.files == ("engine.log",) and list(first.listing.ids) == [10]
        assert question.read(reader, first).listing is first.listing
        with log.open("a") as more:
            more.write("error: three\n")
        second = question.read(reader, first)
        assert second.listing.at_hand is not None
        assert [line.text for line in second.listing.at_hand.values()] == ["two", "three"]
        outside = Question(questions.logs, (home, "../marlaas.toml", EventFilter())).read(reader, None)
        assert len(outside.listing.ids) == 0
