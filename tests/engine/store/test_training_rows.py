"""Rows of training: groups and steps, unfinished groups, the order of turns, held-out scores and findings."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from marlaas.engine.environments.protocol import EpisodeOutcome, FinishedEpisode
from marlaas.engine.errors import StoreError
from marlaas.engine.store.experience import OpenPlay, PolicyGroup
from marlaas.engine.store.queries import episodes
from marlaas.engine.store.queries.episodes import episode, group_rows
from marlaas.engine.store.queries.reader import Reader
from marlaas.engine.store.store import Store
from marlaas.engine.store.versions import Evaluation, NewVersion
from marlaas.engine.trainer.advantages import ClosedGroup, ClosingRules, Credit, close_group
from marlaas.engine.trajectories import (
    Episode,
    Failure,
    Group,
    Span,
    Trajectory,
    Transcript,
    Transcript as Spoken,
    TurnReward,
)
from marlaas.plugins.messages import Message, ToolCall
from marlaas.plugins.rewards import Transcript as Conversation

from .playing import beside, part, said


def group(number: int, version: int = 0) -> Group:
    trajectory = Trajectory(
        "agent",
        np.array([5, 6, 7], np.int32),
        np.array([0, 1, 1], np.uint8),
        np.array([0, -0.25, -1.5], np.float32),
        (Span(1, 3, version),),
        1.0,
        0.5,
        cut=True,
    )
    failed = Episode(1, "error", (), failure=Failure("it broke", "env.py", 3))
    return Group(number, number, version, "env1", (Episode(0, "ok", (trajectory,), {"lenient": 1.0}), failed), 2)


def commit(store: Store, policy: int, number: int, groups: list[int]) -> None:
    name = f"v{number}-i{store.incarnation}"
    store.versions.commit_step(
        policy, NewVersion(number, name, "sum", "path", 9), groups, 0.5, {"reward": 0.5, "tokens": 4}
    )


def test_trajectories_come_back_token_for_token(store: Store, policy: int, database: Path) -> None:
    store.experience.add_group(policy, "train", group(3), {(0, "agent", 0): Transcript((("user", "2+2="),))})
    (back,) = store.experience.waiting(policy)
    sent, got = group(3).episodes[0].trajectories[0], back.episodes[0].trajectories[0]
    for name in ("tokens", "mask", "logprobs"):
        np.testing.assert_array_equal(getattr(sent, name), getattr(got, name))
    assert (got.spans, got.reward, got.advantage, got.cut) == (sent.spans, 1.0, 0.5, True)
    assert back.replaced == 2
    with Reader(database) as reader:
        failed, good = reader.trajectories(1)
    assert good.turns[0].text == "2+2=" and good.reward == 1.0
    assert failed.failure == "it broke" and failed.reward is None


def test_a_restart_gives_turns_the_same_advantages(store: Store, policy: int) -> None:
    """Payments, forks and advantages of turns come back, so that closing a stored group again changes no bit."""
    own = group(3).episodes[0].trajectories[0]
    forked = replace(own, spans=(Span(1, 3, 0, fork=True),))
    mine = replace(own, spans=(Span(1, 2, 0), Span(2, 3, 0)))
    paid = (TurnReward("agent", 1, 0.1, "near"), TurnReward("other", 0, 1 / 3), TurnReward("agent", 2, 0.7))
    first = Episode(0, "ok", (mine, forked, replace(own, agent="other", reward=1 / 3)), paid=paid)
    second = Episode(1, "ok", (replace(mine, reward=0.3), replace(own, agent="other", reward=0.0)))
    rules = ClosingRules("standard", credit=Credit(0.9))
    closed = close_group(Group(3, 0, 0, "env1", (first, second)), rules)
    assert isinstance(closed, ClosedGroup)
    store.experience.add_group(policy, "train", closed.group, {})
    (back,) = store.experience.waiting(policy)
    assert [sorted(e.paid, key=str) for e in back.episodes] == [sorted(paid, key=str), []]
    again = close_group(back, rules)
    assert isinstance(again, ClosedGroup) and again.rewards == closed.rewards
    spans = [[t.spans for e in some.episodes for t in e.trajectories] for some in (closed.group, back, again.group)]
    assert spans[0] == spans[1] == spans[2]
    assert [span.advantage is None for span in spans[0][1]] == [True] and spans[0][0][1].advantage


def test_weights_come_with_a_step_and_go_with_it(store: Store, policy: int, database: Path) -> None:
    def kept() -> list[object]:
        with Reader(database) as reader:
            return [row["weights"] for row in reader.all("SELECT weights FROM groups ORDER BY number")]

    for number in (0, 1, 2):
        store.experience.add_group(policy, "train", group(number), {})
    for step, number in ((1, 0), (2, 1), (3, 2)):
        new = NewVersion(step, f"v{step}", "sum", "path", 9)
        store.versions.commit_step(policy, new, [number], 0.5, {}, {number: b"ab"} if number else {})
    assert kept() == [None, b"ab", b"ab"]
    store.versions.void_after(policy, 2)
    assert kept() == [None, b"ab", None]
    store.experience.shrink(policy, 2)
    assert kept() == [None, None, None]


def test_a_failing_commit_leaves_nothing(store: Store, policy: int) -> None:
    store.experience.add_group(policy, "train", group(0), {})
    commit(store, policy, 1, [0])
    store.experience.add_group(policy, "train", group(1), {})
    with pytest.raises(StoreError):  # the name stands there already
        commit(store, policy, 1, [1])
    assert [g.number for g in store.experience.waiting(policy)] == [1]
    assert [v.number for v in store.versions.candidates(policy)] == [1]


PLAY = OpenPlay(1, 7, ("solver", "critic"), 2, 9, "sums", "e1", {"solver": (3, "abc"), "base": (0, "def")}, 1, 2, 3)
SAID = Conversation(
    {"solver": (Message("user", "?"), Message("assistant", "", "", (ToolCall("look", {"at": [1, {}]}),)))}
)
PAID = (TurnReward("solver", 2, 0.1, "step"),)


def trajectory(agent: str, reward: float | None) -> Trajectory:
    spans = (Span(1, 2, 3), Span(2, 3, 3, True))
    arrays = np.array([5, 6, 7], np.int32), np.array([0, 1, 1], np.uint8), np.array([0, -0.1, -1e-30], np.float32)
    return Trajectory(agent, *arrays, spans, reward, cut=True)


def member(number: int) -> FinishedEpisode:
    """One with two agents, of whom the solver forked, that had failed before."""
    outcome = EpisodeOutcome(
        "ok",
        {"solver": 0.1 + 0.2, "silent": -1.0},
        {"spelling": 1 / 3},
        {"steps": 2.0, "word": "x"},
        "bad move",
        Failure("paid for", "env.py", 3, "trace"),
        1.5,
        PAID,
        task={"q": [1, None]},
        transcript=SAID,
    )
    trajectories = trajectory("critic", None), trajectory("solver", 0.5), trajectory("solver", 0.5)
    metrics = outcome.metrics | {"invalid": "bad move"}
    episode = Episode(number, "ok", trajectories, outcome.parts, metrics, outcome.failure, 1.5, PAID)
    texts = {
        (number, "critic", 0): Spoken((("user", "a"),)),
        (number, "solver", 0): Spoken((("user", "b"), ("assistant", "c")), (0, 3)),
        (number, "solver", 1): Spoken(),
    }
    before = EpisodeOutcome("error", failure=Failure("gone", "env.py", 9)), EpisodeOutcome("timeout", overloaded=True)
    return FinishedEpisode(episode, texts, b"\x00prompt", outcome, 2.5, before)


def alike(one: FinishedEpisode, other: FinishedEpisode) -> bool:
    """Equal in all; arrays have no equality of their own."""
    arrays = ("tokens", "mask", "logprobs")
    pairs = list(zip(one.episode.trajectories, other.episode.trajectories, strict=True))
    same = all(
        getattr(a, name).dtype == getattr(b, name).dtype and (getattr(a, name) == getattr(b, name)).all()
        for a, b in pairs
        for name in arrays
    )
    plain = [
        replace(
            kept,
            episode=replace(
                kept.episode,
                trajectories=tuple(
                    replace(t, **{name: None for name in arrays})  # type: ignore[arg-type]
                    for t in kept.episode.trajectories
                ),
            ),
        )
        for kept in (one, other)
    ]
    return same and plain[0] == plain[1]


def test_members_come_back_as_they_were(store: Store) -> None:
    mute = FinishedEpisode(Episode(5, "ok", ()), {}, None, EpisodeOutcome("ok", {"agent": 1.0}))
    store.open_plays.keep(PLAY, [member(2), mute])
    store.open_plays.keep(PLAY, [member(0)])
    assert store.open_plays.find(1, 7, ["critic"]) == PLAY == store.open_plays.find(1, 7, ["solver", "critic"])
    kept = store.open_plays.members(PLAY)
    assert [one.episode.member for one in kept] == [0, 2, 5]
    assert alike(kept[0], member(0)) and alike(kept[1], member(2)) and alike(kept[2], mute)


def test_plays_for_some_of_the_policies_are_removed(store: Store) -> None:
    """No other than the one that goes on is ever needed by one of them again."""
    alone, judged = replace(PLAY, policies=("critic",)), replace(PLAY, policies=("judge",))
    for play in (PLAY, alone, judged):
        store.open_plays.keep(play, [member(0)])
    assert store.open_plays.find(1, 7, ["critic", "solver"]) == PLAY
    store.open_plays.drop_others(1, 7, ["critic", "solver"], PLAY)
    assert store.open_plays.find(1, 7, ["critic"]) == PLAY and store.open_plays.find(1, 7, ["judge"]) == judged
    assert store.open_plays.members(alone) == []
    store.open_plays.drop_others(1, 7, ["critic"], None)
    assert store.open_plays.find(1, 7, ["solver"]) is None


def test_a_further_attempt_takes_the_place_of_the_one_before(store: Store) -> None:
    store.open_plays.keep(PLAY, [member(0), member(1)])
    again = replace(PLAY, attempt=3, index=1_000_012)
    store.open_plays.keep(again, [member(2)])
    assert store.open_plays.find(1, 7, ["solver"]) == again
    assert [one.episode.member for one in store.open_plays.members(again)] == [2]


@pytest.mark.parametrize("closes", [True, False])
def test_the_last_group_takes_the_members_with_it(store: Store, policy: int, closes: bool) -> None:
    store.open_plays.keep(PLAY, [member(0)])
    group = PolicyGroup(policy, Group(7, 9, 3, "e1", (Episode(0, "ok", (trajectory("solver", 1.0),)),)), {})
    first = store.experience.add_play("train", [group], opens=None if closes else PLAY, closes=PLAY if closes else None)
    assert (store.open_plays.find(1, 7, ["critic"]) is None) is closes
    again = replace(group, group=replace(group.group, number=8))
    assert store.experience.add_play("train", [again], play=first) == first
    rows = store._database.query("SELECT number, coalesce(play, id) AS play FROM groups ORDER BY number")
    assert [(row["number"], row["play"]) for row in rows] == [(7, first), (8, first)]


COUNTED = """SELECT g.policy, CASE g.split WHEN 'train' THEN 'train' ELSE 'eval' END AS kind, coalesce(g.step, -1),
count(*), sum((SELECT count(*) FROM trajectories j WHERE j."group" = g.id AND j.status != 'ok' AND j.speaker = ''))
FROM groups g GROUP BY 1, 2, 3 ORDER BY 1, 2, 3"""


def kept(path: Path) -> list[tuple[int, str, int, int, int]]:
    """What is kept, which must be what counting finds."""
    with Reader(path) as reader:
        rows = [tuple(row) for row in reader.all("SELECT * FROM played ORDER BY policy, kind, step")]
        assert rows == [tuple(row) for row in reader.all(COUNTED)]
    return rows


def failing(number: int, version: int = 0) -> Group:
    """A group in which two members failed, not one: the further one before it was asked."""
    good = group(number, version)
    return replace(good, episodes=(*good.episodes, Episode(7, "error", ())))


def test_groups_that_come_move_and_go_are_counted(store: Store, policy: int, database: Path) -> None:
    for number in range(6):
        made = failing(number, number // 2) if number % 2 else group(number, number // 2)
        store.experience.add_group(policy, "train", made, {})
    store.experience.add_group(policy, "train", failing(0), {})  # in place of the first
    assert kept(database) == [(policy, "train", -1, 6, 10)]
    commit(store, policy, 1, [0, 1])
    commit(store, policy, 2, [2, 3])
    store.experience.add_group(policy, "eval", failing(0, 2), {}, step=2)
    store.experience.add_group(policy, "test", group(0, 2), {}, step=2)
    measured, first = (policy, "eval", 2, 2, 3), (policy, "train", 1, 2, 4)
    assert kept(database) == [measured, (policy, "train", -1, 2, 3), first, (policy, "train", 2, 2, 3)]
    store.versions.void_after(policy, 1)
    assert kept(database) == [measured, (policy, "train", -1, 4, 6), first]
    store.experience.drop_unusable(policy, 1)
    assert kept(database) == [measured, (policy, "train", -1, 2, 3), first]
    with Reader(database) as reader:
        steps = episodes.rollout_steps(reader, 1)
    assert [(one.split, one.step, one.groups, one.failures) for one in steps] == [
        ("train", 1, 2, 4), ("eval", 2, 2, 3), ("train", None, 2, 3),
    ]  # fmt: skip


PLACES = {"first": (0, 3), "second": (4, 5), "referee": (1, 2)}
"""The first is asked, the referee is asked and answers, the first answers, then the second."""


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


WHOLE = Evaluation(
    step=1,
    environment_version="env1",
    score=0.5,
    stderr=0.1,
    n=15,
    floor=0.25,
    metrics={"lenient": 0.75},
    failures=1,
    prompts=8,
    samples=2,
    series="s",
    best_of=0.6,
    pass_at=0.7,
)


def committed(store: Store, policy: int, many: int) -> list[int]:
    """Ids of as many versions, from 0 on."""
    first = store.versions.commit_first(policy, NewVersion(0, "v0", "sum", "v0", 9))
    made = (
        store.versions.commit_step(policy, NewVersion(n, f"v{n}", "sum", f"v{n}", 9), [], 1, {}) for n in range(1, many)
    )
    return [first.id, *(version.id for version in made)]


def test_all_that_a_score_rests_on_is_read_back(store: Store, policy: int, database: Path) -> None:
    ids = committed(store, policy, 2)
    store.evaluations.add(policy, ids[1], WHOLE)
    with Reader(database) as reader:
        (row,) = reader.evals(1)
    assert row.created and replace(row, created=0.0) == WHOLE


def test_every_series_has_its_best_and_the_untrained_is_none(store: Store, policy: int) -> None:
    ids = committed(store, policy, 5)
    for series, scores in {"s": (0.9, 0.4, 0.4, 0.1), "t": (0.1, 0.2, 0.3, 0.3)}.items():
        for step, score in enumerate(scores):
            store.evaluations.add(policy, ids[step], replace(WHOLE, step=step, score=score, series=series))
    assert store.evaluations.best_of_each(policy) == {1, 2}
    store.evaluations.add(policy, ids[4], replace(WHOLE, step=4, score=0.8, series="s"))
    assert store.evaluations.best_of_each(policy) == {4, 2} and store.evaluations.series(policy) == "s"


def test_suites_and_the_test_split_stay_apart(store: Store, policy: int, database: Path) -> None:
    ids = committed(store, policy, 2)
    own = replace(WHOLE, score=0.5)
    for other in (own, replace(own, suite="far", score=0.9), replace(own, split="test", score=0.8)):
        store.evaluations.add(policy, ids[1], other)
    assert store.evaluations.scores(policy) == {1: 0.5}
    assert store.evaluations.of("far").measured(policy, "s") == {1: 0.9}
    assert store.evaluations.of("", "test").measured(policy, "s") == {1: 0.8}
    with Reader(database) as reader:
        (row, *_), task = reader.versions(1), reader.task(1)
    assert task is not None and (row.score, task.score, task.best) == (0.5, 0.5, 0.5)


def steps(store: Store, policy: int, many: int) -> None:
    """Commit so many steps with a few metrics."""
    store.versions.commit_first(policy, NewVersion(0, "v0", "sum", "v0", 9))
    for n in range(1, many + 1):
        metrics = {"reward": n / 10, "moved": float("nan") if n == 2 else 0.5}
        store.versions.commit_step(policy, NewVersion(n, f"v{n}", "sum", f"v{n}", 9), [], 1.0, metrics)


def test_only_steps_on_the_newest_environment_are_seen(store: Store, policy: int) -> None:
    steps(store, policy, 9)
    store._database.execute("UPDATE steps SET environment_version = CASE WHEN number < 4 THEN 'a' ELSE 'b' END")
    seen = store.findings.seen(policy, ["reward", "moved"], first=2, last=3)
    assert [(one.step, one.environment_version) for one in seen] == [(4, "b"), (5, "b"), (7, "b"), (8, "b"), (9, "b")]
    assert seen[0].metrics == {"reward": 0.4, "moved": 0.5}
    assert store.findings.environment_at(policy, 3) == "a"
