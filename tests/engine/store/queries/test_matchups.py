"""Who met whom: pairs of versions, counted once an episode."""

from __future__ import annotations

from pathlib import Path

from marlaas.engine.store.queries.learning import Matchup, matchups
from marlaas.engine.store.queries.reader import Reader
from marlaas.engine.store.store import Store

from ..playing import beside, duel, part, said


def test_pairs_of_training_and_of_held_out_plays(store: Store, database: Path) -> None:
    task, _ = duel(store, database)
    with Reader(database) as reader:
        found = matchups(reader, task)
    assert [pair for pair in found if pair.who == "player"] == [
        Matchup("player", 1, "judge", 2, 2, 1.0, 1.0),
        Matchup("player", 1, "old", 0, 1, 0.5, 0.25),
        Matchup("player", 1, "player@0", 0, 1, 1.0, 1.0),
        Matchup("player", 1, "rivals", 3, 2, 1.0, 1.0),
    ]
    assert Matchup("judge", 2, "rivals", 3, 2, 1.25, 0.8125) in found
    assert Matchup("rivals", 3, "player", 1, 2, 1.0, 1.0) in found


def test_a_version_that_plays_itself_is_no_pair(store: Store, policy: int, database: Path) -> None:
    both = (said("first", 1.0, 4), said("second", 0.0, 4))
    store.experience.add_play("train", [part(policy, 0, 4, both)])
    with Reader(database) as reader:
        assert matchups(reader, 1) == []


def test_the_agents_of_one_side_count_as_one(store: Store, policy: int, database: Path) -> None:
    """Two agents of the policy are paid 1 and 0.5; what was not paid counts for nobody."""
    ours = (said("first", 1.0, 4), said("second", 0.5, 4))
    unpaid = (said("first", None, 4), said("second", None, 4))
    theirs = ((said("third", 0.0, 2),), (said("third", 0.25, 2),))
    store.experience.add_play("train", [part(policy, 0, 4, ours, unpaid)], [beside("17@2", *theirs)])
    with Reader(database) as reader:
        assert matchups(reader, 1) == [
            Matchup("17@2", 2, "policy", 4, 2, 0.25, 0.0625),
            Matchup("policy", 4, "17@2", 2, 1, 0.75, 0.5625),
        ]
