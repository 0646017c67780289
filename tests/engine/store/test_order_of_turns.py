"""The order in which agents spoke is stored with what they said, and is a guess where an older marlaas stored it."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from marlaas.engine.environments.protocol import EpisodeOutcome, FinishedEpisode
from marlaas.engine.store.database import open_database
from marlaas.engine.store.experience import OpenPlay
from marlaas.engine.store.queries.episodes import episode, group_rows
from marlaas.engine.store.queries.reader import Reader
from marlaas.engine.store.store import Store
from marlaas.engine.trajectories import Transcript

from ...old_homes import unpack
from .playing import beside, part, said

PLACES = {"first": (0, 3), "second": (4, 5), "referee": (1, 2)}
"""The first is asked, the referee is asked and answers, the first answers, then the second."""
PLAY = OpenPlay(1, 7, ("player",), 0, 9, "", "e1", {"player": (3, "abc")})


@pytest.fixture
def played(store: Store, policy: int) -> None:
    """A play of three agents, whose turns went through each other."""
    own = part(policy, 0, 1, (said("first", 1.0),))
    other = part(policy, 1, 1, (said("referee", 1.0),))
    third = beside("rivals", (said("second", 0.0),))
    placed = [replace(one, transcripts=with_places(one.transcripts)) for one in (own, other)]
    first = store.experience.add_play("train", placed[:1], [replace(third, transcripts=with_places(third.transcripts))])
    judge = replace(placed[1], policy=store.versions.policy(1, "judge", {}), group=placed[0].group)
    again = replace(judge, group=replace(judge.group, episodes=placed[1].group.episodes))
    store.experience.add_play("train", [again], play=first)


def with_places(texts: dict[tuple[int, str, int], Transcript]) -> dict[tuple[int, str, int], Transcript]:
    return {key: replace(text, places=PLACES[key[1]]) for key, text in texts.items()}


def test_the_order_comes_back_for_all_groups_of_a_play(played: None, database: Path) -> None:
    with Reader(database) as reader:
        together = episode(reader, 1)
    assert {one.agent: one.parts[0].places for one in together} == PLACES
    assert all(one.order_known for one in together)


def test_where_nobody_wrote_it_down_it_is_a_guess(played: None, database: Path) -> None:
    with closing(sqlite3.connect(database)) as connection, connection:
        connection.execute("UPDATE trajectories SET places = NULL")
    with Reader(database) as reader:
        together = episode(reader, 1)
        alone = {one.agent: one.parts[0].places for one in together}
        assert not any(one.order_known for one in together)
    assert alone == {"first": (0, 1), "second": (2, 3), "referee": (4, 5)}


def test_one_agent_s_order_is_certain(store: Store, policy: int, database: Path) -> None:
    store.experience.add_play("train", [part(policy, 0, 1, (said("first", 1.0),))])
    with Reader(database) as reader:
        (one,) = episode(reader, 1)
    assert one.order_known and one.parts[0].places == (0, 1)


def test_members_of_open_plays_keep_it(store: Store) -> None:
    own = part(0, 0, 1, (said("first", 1.0),))
    texts = with_places(own.transcripts)
    kept = FinishedEpisode(own.group.episodes[0], texts, None, EpisodeOutcome("ok", {"first": 1.0}))
    store.open_plays.keep(PLAY, [kept])
    (back,) = store.open_plays.members(PLAY)
    assert [text.places for text in back.transcripts.values()] == [(0, 3)]


def test_an_old_home_is_read_in_its_likely_order(tmp_path: Path) -> None:
    home = unpack(tmp_path / "home")
    open_database(home.database).close()
    with Reader(home.database) as reader:
        together = episode(reader, reader.trajectories(2)[0].id)
    assert together and together[0].order_known, "one agent: nobody spoke between its turns"
    assert together[0].parts[0].places == tuple(range(len(together[0].parts[0].turns)))


def test_a_group_s_prompt_is_that_of_who_was_asked_first(store: Store, policy: int, database: Path) -> None:
    own = part(policy, 0, 1, (said("buyer", 1.0), said("seller", 1.0)))
    texts = {
        (0, "buyer", 0): Transcript((("user", "she wants 9"), ("assistant", "no")), (2, 3)),
        (0, "seller", 0): Transcript((("user", "sell"), ("assistant", "9")), (0, 1)),
    }
    store.experience.add_play("train", [replace(own, transcripts=texts)])
    for prompt in ("sell", "she wants 9"):
        with Reader(database) as reader:
            (group,) = group_rows(reader, [1]).values()
        assert group.prompt == prompt and [member.reply for member in group.members] == ["no", "9"]
        store._database.execute("UPDATE trajectories SET places = NULL")
