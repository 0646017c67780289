"""What lists of rollouts and one conversation read."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from marlaas.engine.store.queries import episodes as conversations, episodes as rollouts
from marlaas.engine.store.queries.episodes import BETWEEN, PROMPT, REPLY, Excerpt, Paid, excerpt, reply_ends
from marlaas.engine.store.queries.reader import Reader
from marlaas.engine.store.rows import Turn
from marlaas.engine.store.store import Store
from marlaas.engine.store.versions import Evaluation, NewVersion
from marlaas.engine.trajectories import Episode, Failure, Group, Span, Split, Trajectory, Transcript, TurnReward
from tests.engine.store.playing import duel

FAILURE = Failure("it broke", "env.py", 3, "Traceback …")
TOLD = (("user", "2+2="), ("assistant", "4"))


def spoken(reward: float | None, agent: str = "agent", first: int = 5) -> Trajectory:
    return Trajectory(
        agent,
        np.array([first, 6, 7], np.int32),
        np.array([0, 1, 1], np.uint8),
        np.array([0, -0.25, -1.5], np.float32),
        (Span(1, 3, 4),),
        reward,
        0.5,
        cut=True,
    )


def group(number: int, *episodes: Episode) -> Group:
    return Group(number, 7, 0, "env1", episodes, 2)


@pytest.fixture
def played(store: Store, policy: int) -> Store:
    """Two groups of one step, one that waits, and an evaluation of one prompt."""
    good, bad = Episode(0, "ok", (spoken(1.0),), {"lenient": 1.0}), Episode(1, "error", (), failure=FAILURE)
    paid = (TurnReward("agent", 1, 0.5, "step"), TurnReward("critic", 1, -1.0))
    rewritten = Episode(1, "ok", (spoken(0.0), spoken(0.0, first=8), spoken(0.0, "critic")), paid=paid)
    said = {(0, "agent", 0): Transcript(TOLD), (1, "agent", 1): Transcript((("user", "again"),))}
    parts: list[tuple[Split, Group, int | None]] = [
        ("train", group(0, good, bad), None),
        ("train", group(1, good, rewritten), None),
        ("train", group(2, good), None),
        ("eval", group(0, good), 1),
    ]
    for split, one, step in parts:
        store.experience.add_group(policy, split, one, said, step)
    weights = np.array([0.5, 0.25, 0, -1, 2, 3, math.nan, math.nan], np.float16).tobytes()
    version = store.versions.commit_step(
        policy, NewVersion(1, "v1", "sum", "path", 9), [0, 1], 0.5, {"reward": 0.4}, {1: weights}
    )
    store.evaluations.add(
        policy,
        version.id,
        Evaluation(step=1, environment_version="env1", score=0.75, stderr=0.1, n=1, floor=None, metrics={}),
    )
    return store


def test_steps_evaluations_and_what_waits(played: Store, database: Path) -> None:
    with Reader(database) as reader:
        steps = rollouts.rollout_steps(reader, 1)
        assert rollouts.rollout_steps(reader, 1, since=2) == steps[2:] and rollouts.rollout_steps(reader, 9) == []
    assert [(s.split, s.step, s.groups, s.reward, s.failures) for s in steps] == [
        ("train", 1, 2, 0.4, 1),
        ("eval", 1, 1, 0.75, 0),
        ("train", None, 1, None, 0),
    ]


def test_groups_with_the_rewards_of_their_members(played: Store, database: Path) -> None:
    with Reader(database) as reader:
        ids = rollouts.group_ids(reader, 1, "train", 1)
        found = rollouts.group_rows(reader, ids)
        assert list(rollouts.group_ids(reader, 1)) == [4, 3, 2, 1]
        assert list(rollouts.group_ids(reader, 1, "train", None)) == [3]
        assert list(rollouts.group_ids(reader, 1, failures=True)) == [1]
    first, second = (found[key] for key in ids)
    assert [(m.member, m.agent, m.status, m.reward) for m in first.members] == [
        (0, "agent", "ok", 1.0), (1, "", "error", None)
    ]  # fmt: skip
    assert (first.rewards, first.staleness, first.instance) == ([1.0], 0, 7)
    assert [(m.member, m.agent) for m in second.members] == [(0, "agent"), (1, "agent"), (1, "critic")]


def test_trajectories_count_as_one_conversation(played: Store, database: Path) -> None:
    with Reader(database) as reader:
        own = rollouts.conversation_ids(reader, 1, group=2)
        everything = rollouts.conversation_ids(reader, 1)
        assert list(everything) == sorted([1, 2, *own, 7, 8], reverse=True) and list(own) == [3, 4, 6]
        assert list(rollouts.conversation_ids(reader, 1, "train", 1, failures=True)) == [2]
        assert list(rollouts.conversation_ids(reader, 1, after=6)) == [8, 7]
        rows = rollouts.conversation_rows(reader, [2, 4])
        assert rollouts.conversation_texts(reader, [4])[4].count("again") == 1
    assert (rows[2].status, rows[2].reward, rows[2].tokens) == ("error", None, 0)
    assert (rows[4].number, rows[4].member, rows[4].agent, rows[4].tokens) == (1, 1, "agent", 3)


def test_a_conversation_comes_back_token_for_token(played: Store, database: Path) -> None:
    with Reader(database) as reader:
        one, failed = conversations.conversation(reader, 4), conversations.conversation(reader, 2)
        assert conversations.conversation(reader, 99) is None and one == conversations.conversation(reader, 5)
    assert one is not None and failed is not None
    assert [part.turns for part in one.parts] == [(), (Turn("user", "again"),)]
    first, second = (part.tokens for part in one.parts)
    assert (list(first.ids), list(second.ids)) == ([5, 6, 7], [8, 6, 7])
    assert (list(first.sampled), list(first.logprobs), first.spans) == ([0, 1, 1], [0.0, -0.25, -1.5], ((1, 3, 4),))
    assert (first.weights, second.weights) == ((0.0, -1.0), (2.0, 3.0))
    assert (one.cut, one.tokens, one.reward) == (True, 6, 0.0)
    assert one.paid == (Paid(1, 0.5, "step"),) and failed.paid == ()
    assert (failed.failure, failed.file, failed.line, failed.traceback) == ("it broke", "env.py", 3, "Traceback …")


def test_an_empty_episode_leaves_the_weights_of_others(store: Store, policy: int, database: Path) -> None:
    """Weights are cut out by the masks before: an episode without tokens has none."""
    episodes = (Episode(0, "error", (), failure=FAILURE), Episode(1, "ok", (replace(spoken(1.0)),)))
    store.experience.add_group(policy, "train", group(0, *episodes), {})
    weights = {0: np.array([0.5, 0.25], np.float16).tobytes()}
    store.versions.commit_step(policy, NewVersion(1, "v1", "sum", "path", 9), [0], 0.5, {}, weights)
    with Reader(database) as reader:
        one = conversations.conversation(reader, 2)
    assert one is not None and one.parts[0].tokens.weights == (0.5, 0.25)


def test_a_play_is_read_with_everybody_who_spoke_in_it(store: Store, database: Path) -> None:
    task, _ = duel(store, database)
    with Reader(database) as reader:
        for policy, own in (("player", "first"), ("judge", "referee")):
            group = rollouts.group_ids(reader, task, "train", 1, policy=policy)[0]
            rows = rollouts.conversation_rows(reader, ids := rollouts.conversation_ids(reader, task, group=group))
            spoken = [(rows[id].member, rows[id].agent, rows[id].speaker) for id in ids]
            assert {agent for _, agent, _ in spoken} == {"first", "referee", "second"} and len(spoken) == 6
            assert spoken[0] == (0, own, "") and (1, "second", "rivals") in spoken
            summary = rollouts.group_rows(reader, [group])[group]
            assert {member.agent for member in summary.members} == {own}, "others' rewards are not the group's"
            episode = conversations.episode(reader, ids[0])
            assert episode[0].agent == own and {one.play for one in episode} == {episode[0].play}
            assert {one.spoke for one in episode if one.speaker} == {3}


def stored(*turns: tuple[str, str]) -> str:
    return json.dumps([{"role": role, "text": text} for role, text in turns])


def test_the_last_message_before_a_reply_and_the_last_reply() -> None:
    first = stored(("system", "rules"), ("user", "go"), ("thinking", "hm"), ("assistant", "a"), ("user", "on"))
    assert excerpt([first, stored(("assistant", "b"), ("tool", "7"))]) == Excerpt("go", "b", 2)
    assert excerpt([stored(("system", "only rules"))]) == Excerpt("only rules", "", 0)
    assert excerpt([stored(("user", "go"), ("thinking", "hm"))]) == Excerpt("go", "", 0)
    assert excerpt([stored(("user", "go"), ("assistant", ""))]) == Excerpt("go", "", 1)
    assert excerpt([None, ""]) == excerpt([]) == Excerpt()


def test_long_texts_are_cut() -> None:
    found = excerpt([stored(("user", "x" * 10**5), ("assistant", "\ud800" * 10**5))])
    assert (len(found.short_prompt), len(found.short_reply)) == (PROMPT, REPLY + len(BETWEEN))
    answered = Excerpt(reply="so " * 500 + "it is 42").short_reply
    assert answered.startswith("so so") and answered.endswith("so it is 42"), "answers stand at the end"
    assert Excerpt(reply="x" * REPLY).short_reply == "x" * REPLY


def told(*turns: str) -> list[Turn]:
    """Turns from ``user: text``."""
    return [Turn(*turn.split(": ", 1)) for turn in turns]


def test_a_thought_and_its_answer_are_one_reply() -> None:
    turns = told("user: a", "thinking: b", "assistant: c", "thinking: d", "user: e", "assistant: f", "thinking: g")
    assert reply_ends(turns) == [3, 4, 6, 7] and reply_ends([]) == []
