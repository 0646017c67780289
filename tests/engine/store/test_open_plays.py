"""What is kept of a play that goes on comes back as it was, and goes with its play."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from marlaas.engine.environments.protocol import EpisodeOutcome, FinishedEpisode
from marlaas.engine.store.experience import OpenPlay, PolicyGroup
from marlaas.engine.store.store import Store
from marlaas.engine.trajectories import Episode, Failure, Group, Span, Trajectory, Transcript as Spoken, TurnReward
from marlaas.plugins.messages import Message, ToolCall
from marlaas.plugins.rewards import Transcript

PLAY = OpenPlay(1, 7, ("solver", "critic"), 2, 9, "sums", "e1", {"solver": (3, "abc"), "base": (0, "def")}, 1, 2, 3)
SAID = Transcript(
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
        (number, "solver", 0): Spoken((("user", "b"), ("assistant", "c"))),
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


def test_another_policy_task_or_number_has_another_play(store: Store) -> None:
    store.open_plays.keep(PLAY, [member(0)])
    assert store.open_plays.find(1, 7, ["solver", "judge"]) is None
    assert store.open_plays.find(2, 7, ["solver"]) is store.open_plays.find(1, 8, ["solver"]) is None
    alone = replace(PLAY, policies=("judge",))
    store.open_plays.keep(alone, [member(1)])
    assert store.open_plays.find(1, 7, ["judge"]) == alone
    store.open_plays.drop(PLAY)
    assert store.open_plays.find(1, 7, ["solver"]) is None and len(store.open_plays.members(alone)) == 1


def test_a_member_that_is_kept_twice_is_there_once(store: Store) -> None:
    store.open_plays.keep(PLAY, [member(0), member(1)])
    store.open_plays.keep(PLAY, [member(1), member(2)])
    kept = store.open_plays.members(PLAY)
    assert len(kept) == 3 and all(alike(one, member(number)) for number, one in enumerate(kept))


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
