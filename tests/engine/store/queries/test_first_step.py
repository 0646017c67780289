"""How many episodes of the first step are there."""

from __future__ import annotations

import json
from contextlib import closing
from pathlib import Path

import pytest

from marlaas.engine.store.queries.learning import FirstStep, first_step
from marlaas.engine.store.queries.reader import Reader

from ....app.filling import NOW, Filling

TRAIN = {"groups_per_step": 2, "group_size": 8}


@pytest.fixture
def filling(tmp_path: Path) -> Filling:
    fill = Filling(tmp_path / "marlaas.db")
    fill.task(made=0)
    return fill


def configure(fill: Filling, **config: object) -> None:
    fill.execute("UPDATE tasks SET config = ?", json.dumps({"train": TRAIN} | config))


def group(fill: Filling, number: int, state: str = "complete") -> None:
    fill.insert(
        "groups", policy=1, split="train", number=number, instance=1, version=0, environment_version="e", state=state,
        created=NOW,
    )  # fmt: skip


def play(fill: Filling, number: int, members: int) -> None:
    row = dict(
        attempt=0, instance=1, component="", environment_version="e", speaking="{}", replaced=0, lost=0, replayed=0
    )
    own = fill.insert("open_plays", task=1, number=number, policies="[]", created=NOW, **row)
    empty = dict.fromkeys(("tokens", "mask", "logprobs"), b"") | {"spans": "[]", "turns": "[]", "cut": 0}
    for member in range(members):
        for agent in ("first", "second"):
            fill.insert("open_trajectories", play=own, member=member, agent=agent, **empty)


def asked(fill: Filling, policy: str | None = None) -> FirstStep | None:
    with closing(Reader(fill.path)) as reader:
        return first_step(reader, 1, policy)


def test_complete_groups_and_members_of_open_plays_count(filling: Filling) -> None:
    configure(filling)
    assert asked(filling) == FirstStep(0, 16)
    group(filling, 0)
    play(filling, 1, 4)
    assert asked(filling) == FirstStep(12, 16)
    play(filling, 0, 8)
    assert asked(filling) == FirstStep(12, 16), "a play that waits for another policy counts once"
    group(filling, 2)
    play(filling, 3, 5)
    assert asked(filling) == FirstStep(12, 16), "of later steps"
    group(filling, 1)
    assert asked(filling) == FirstStep(16, 16)


def test_a_policy_may_have_a_batch_of_its_own(filling: Filling) -> None:
    with closing(Reader(filling.path)) as reader:
        ((name,),) = reader.all("SELECT name FROM policies")
    configure(filling, policies={name: {"groups_per_step": 3}, "other": {}})
    assert asked(filling, name) == FirstStep(0, 24)


def test_nothing_is_awaited_after_a_step_and_by_evaluations(filling: Filling) -> None:
    configure(filling)
    filling.execute("UPDATE tasks SET kind = 'eval'")
    assert asked(filling) is None
    filling.execute("UPDATE tasks SET kind = 'train'")
    filling.execute("UPDATE policies SET step = 1")
    assert asked(filling) is None
    filling.execute("UPDATE tasks SET config = '{}'")
    assert asked(filling) is None
