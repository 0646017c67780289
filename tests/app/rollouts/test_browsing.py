"""The way from a task to a conversation, what a search finds, and what an export may hold."""

from __future__ import annotations

import errno
import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given, strategies as st

from marlaas.app.lists.lines import Learner
from marlaas.app.questions import LATE, RolloutsQuestion
from marlaas.app.rollouts.answers import FAILED, UNPAID, age, marks, numbers
from marlaas.app.rollouts.exporting import export, new_file, scopes
from marlaas.app.rollouts.reading import (
    ALL,
    CHUNK,
    WAITING,
    Selection,
    find,
    in_list,
    newest,
    search,
    step_key,
    step_of,
    step_words,
)
from marlaas.engine.errors import ConfigError
from marlaas.engine.home.paths import Home
from marlaas.engine.store.queries.episodes import GroupSummary, MemberSummary, StepSummary
from marlaas.engine.store.queries.reader import Reader

from ..filling import Filling
from ..filling_rollouts import fill_rollouts

ONE = Learner(1)


@pytest.fixture
def reader(filling: Filling) -> Iterator[Reader]:
    fill_rollouts(filling, 30)
    with Reader(filling.path) as reader:
        yield reader


@given(st.sampled_from(["train", "eval"]), st.integers(0, 10**6))
def test_keys_stand_for_steps(split: str, step: int) -> None:
    assert step_of(step_key(split, step)) == (split, step) and step_key(split, step) not in (ALL, WAITING)
    assert step_of(step_key("train", None)) == ("train", None) and step_of(ALL) == (None, None)


def test_newest_first_below_all_and_what_waits() -> None:
    steps = [
        StepSummary("eval", 0, 4, 0.1, 0),
        StepSummary("train", 1, 8, 0.2, 2),
        StepSummary("train", None, 3, None, 0),
    ]
    listed = [step_words(key) for key in in_list(steps, False)]
    assert listed == ["all steps", "waiting", "step 1", "held-out at step 0"]
    assert in_list(steps, False)[ALL] == StepSummary("", None, 15, None, 2)
    assert [step_words(key) for key in in_list(steps, True)] == ["all steps", "step 1"] and in_list([], False) == {}
    assert newest(list(in_list(steps, False))) == step_key("train", 1)
    assert newest(list(in_list(steps[2:], False))) == WAITING and newest([]) == ALL


def test_what_has_gone_gives_way(reader: Reader) -> None:
    key = step_key("train", 7)
    found = find(reader, Selection(ONE, key))
    assert len(found.groups) == len(found.conversations) == 8 and found.place.group == found.groups[0]
    assert found.place.conversation == found.conversations[0]
    assert find(reader, Selection(ONE, key, at_end=True)).place.conversation == found.conversations[-1]
    gone = find(reader, Selection(ONE, key, group=10**9, conversation=10**9))
    assert gone.place == found.place
    whole = find(reader, Selection(ONE, key, ALL))
    assert len(whole.conversations) == 64 and find(reader, Selection(ONE, key, ALL, failures=True)).conversations[0] > 0
    nothing = find(reader, Selection(Learner(9), ALL))
    assert (nothing.place.group, nothing.place.conversation, len(nothing.groups)) == (ALL, None, 0)


def test_only_new_conversations_of_many_groups_are_read(reader: Reader, filling: Filling) -> None:
    first = find(reader, Selection(ONE, ALL, ALL))
    filling.execute("DELETE FROM trajectories WHERE id = 5")
    filling.execute('INSERT INTO trajectories ("group", member, agent, status) VALUES (3, 9, "agent", "ok")')
    again = find(reader, Selection(ONE, ALL, ALL), first)
    assert list(again.conversations[1:]) == list(first.conversations) and 5 in again.conversations  # it shows as gone
    assert 5 not in find(reader, Selection(ONE, ALL, ALL)).conversations
    assert find(reader, Selection(ONE, ALL, ALL, failures=True), again).scope != again.scope
    assert len(find(reader, Selection(ONE, ALL, 3), again).conversations) == 9


def test_the_question_reads_on(reader: Reader, filling: Filling) -> None:
    question = RolloutsQuestion(ONE)
    first = question.read(reader, None)
    assert question.read(reader, first) == first and len(first.steps) == 33
    filling.execute("UPDATE evals SET score = 0.5 WHERE step = 30")
    filling.execute("UPDATE evals SET score = 0.5 WHERE step = ?", 30 - LATE - 1)
    filling.execute("UPDATE metrics SET value = 9 WHERE step = 1")
    again = question.read(reader, first)
    assert again.steps[-1].reward == 0.5 and again.steps[0] == first.steps[0]
    filling.execute("UPDATE policies SET step = 2")
    assert question.read(reader, first).steps[0].reward == 9  # steps were lost: nothing of before counts


def test_a_search_finds_what_was_said_and_nothing_else(reader: Reader, filling: Filling) -> None:
    turns = json.dumps([{"role": "assistant", "text": 'Éa "quoted" \\ role\n名'}])
    filling.execute("UPDATE trajectories SET turns = ? WHERE id = 700", turns)
    ids = reader.conversation_ids(1)

    def hits(word: str) -> list[int]:
        return [hit for progress in search(reader, ids, word) for hit in progress.hits]

    assert hits("éA") == hits('"QUOTED"') == hits("\\ role") == hits("名") == [700]
    assert hits("assistant") == hits('"text"') == [] and len(hits("so that it")) == len(ids) - 1
    looked = [progress.looked for progress in search(reader, ids, "x")]
    assert looked == [*range(CHUNK, len(ids), CHUNK), len(ids)]


def test_an_export_holds_what_was_asked_for(reader: Reader, home: Home, tmp_path: Path) -> None:
    one = reader.conversation(700)
    assert one is not None
    found = scopes(Selection(ONE, ALL), one, [5, 3])
    counts = {}
    for name, scope in found.items():
        counts[name] = export(home, scope.ids, tmp_path / f"{name}.jsonl")
    assert counts == {"one": 1, "hits": 2, "group": 8, "step": 64, "task": 1944}
    assert [json.loads(line)["id"] for line in (tmp_path / "hits.jsonl").read_text().splitlines()] == [3, 5]
    failures = scopes(Selection(ONE, ALL, failures=True), one, None)
    assert failures["task"].words == "the whole task with failures" and "hits" not in failures
    assert export(home, failures["task"].ids, tmp_path / "failures.txt") == 30
    assert "the sum was no number" in (tmp_path / "failures.txt").read_text()
    with pytest.raises(ConfigError, match="is there already"):
        export(home, failures["task"].ids, tmp_path / "failures.txt")
    with pytest.raises(ConfigError, match="cannot be written"):
        export(home, failures["task"].ids, tmp_path / "no" / "where")


def test_a_group_in_a_few_signs() -> None:
    def group(*members: tuple[str, float | None], step: int | None = 5) -> GroupSummary:
        rows = tuple(MemberSummary(place, "agent", *member) for place, member in enumerate(members))
        return GroupSummary(1, "train", 8, 3, 3, "e", step, rows)

    mixed = group(("ok", 0.0), ("ok", 1.0), ("error", None), ("ok", None), ("skip", 0.5), ("ok", float("nan")))
    assert "".join(sign for sign, _ in marks(mixed.members)) == f"▁▇{FAILED}{UNPAID}▄{UNPAID}"
    assert "".join(sign for sign, _ in marks(group(("ok", -2.0), ("ok", 4.0)).members)) == "▁▇"
    assert marks(group(*[("ok", 1.0)] * 20).members)[-1][0] == "+4"
    assert numbers(group(("ok", 0.0), ("ok", 1.0))) == "0.50 ±0.50" and numbers(group(("error", None))) == "-"
    assert age(group()) == "1 old" and age(group(step=None)) == "" and age(group(step=4)) == "fresh"


def test_a_file_that_cannot_be_written_is_not_left_behind(tmp_path: Path) -> None:
    """On a full disk: else the next try would say that it is there already."""

    def full(text: str) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    path = tmp_path / "out.jsonl"
    with pytest.raises(OSError, match="No space left"), new_file(path) as out:
        out.write = full  # type: ignore[method-assign]
        out.write("a")
    assert not path.exists()
    with new_file(path) as out:
        out.write("a")
    with pytest.raises(FileExistsError), new_file(path):
        pass
    assert path.read_text() == "a"
