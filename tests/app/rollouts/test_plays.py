"""A play of several policies, from the lists down to what everybody said in one episode."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from marlaas.app.lists.lines import Learner
from marlaas.app.questions import RolloutsQuestion
from marlaas.app.reading import opened
from marlaas.app.rollouts.exporting import export, joined, scopes
from marlaas.app.rollouts.reading import (
    ADVANTAGE,
    TURNS,
    Selection,
    Wish,
    episode_blocks,
    find,
    load,
    shading_of,
    step_key,
)
from marlaas.engine.home.paths import Home
from marlaas.engine.store.queries.reader import Reader

from ..filling_policies import fill_duel

PLAYER, JUDGE = Learner(2, "player"), Learner(2, "judge")
FIRST = step_key("train", 1)


@pytest.fixture
def reader(home: Home) -> Iterator[Reader]:
    fill_duel(home.database)
    with opened(home) as reader:
        yield reader


def test_each_policy_has_steps_and_groups_of_its_own(reader: Reader) -> None:
    for own, groups in ((PLAYER, [1, 1, 1]), (JUDGE, [1, 1])):
        answer = RolloutsQuestion(own).read(reader, None)
        assert [step.groups for step in answer.steps] == groups
        assert RolloutsQuestion(own).read(reader, answer) == answer
    players, judges = find(reader, Selection(PLAYER, FIRST)), find(reader, Selection(JUDGE, FIRST))
    assert players.groups != judges.groups and sorted(players.conversations) == sorted(judges.conversations)
    assert players.scope != judges.scope, "nothing that was read of one stands for the other"


def test_an_episode_reads_as_one(reader: Reader, home: Home) -> None:
    place = find(reader, Selection(JUDGE, FIRST)).place
    assert place.conversation is not None
    loaded = load(home, Wish(place.conversation, word="second 0"))
    text = joined(loaded.blocks)
    places = [text.index(said) for said in ("who spoke when is a guess", "first 0", "second 0", "referee 0")]
    assert places == sorted(places) and loaded.first is not None
    assert "referee: judge v2" in text and "with first: player v1 · reward 1.00 · advantage" in text
    assert "with second: rivals v3 · reward 0.00\n" in text, "it has no advantage: it learns nothing"
    assert "first 1" not in text, "of another member"


def test_shades_are_of_everybody_who_has_tokens(reader: Reader) -> None:
    place = find(reader, Selection(PLAYER, FIRST)).place
    assert place.conversation is not None
    together = reader.episode(place.conversation)
    blocks = episode_blocks(together, shading_of(ADVANTAGE, together[0]), lambda ids: "x" * len(ids))
    assert [block.text for block in blocks].count("xx") == 3
    turns = episode_blocks(together[:1], shading_of(TURNS, together[0]), None)
    assert "with " not in joined(turns)


def test_an_export_says_who_spoke(reader: Reader, home: Home, tmp_path: Path) -> None:
    place = find(reader, Selection(PLAYER, FIRST)).place
    assert place.conversation is not None
    own = reader.episode(place.conversation)[0]
    found = scopes(place, own, None)
    written = tmp_path / "group.jsonl"
    assert export(home, found["group"].ids, written) == 6
    rows = [json.loads(line) for line in written.read_text().splitlines()]
    assert [(row["member"], row["agent"]) for row in rows] == [
        (member, agent) for member in (0, 1) for agent in ("first", "second", "referee")
    ]
    assert {row["play"] for row in rows} == {own.play}
    assert [(row["policy"], row["speaker"], row["spoke"]) for row in rows[:3]] == [
        ("player", "", 1), ("player", "rivals", 3), ("judge", "", 2),
    ]  # fmt: skip
    counts = {name: export(home, scope.ids, tmp_path / f"{name}.txt") for name, scope in found.items() if name != "one"}
    assert counts == {"group": 6, "step": 4, "task": 10}
