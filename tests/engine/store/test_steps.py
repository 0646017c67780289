"""The step commit: all or nothing, and what recovery finds."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from marlaas.engine.errors import StoreError
from marlaas.engine.store.queries.reader import Reader
from marlaas.engine.store.store import Store
from marlaas.engine.store.versions import Evaluation, NewVersion
from marlaas.engine.trainer.advantages import ClosedGroup, ClosingRules, Credit, close_group
from marlaas.engine.trajectories import Episode, Failure, Group, Span, Trajectory, Transcript, TurnReward


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


def test_the_trajectories_of_one_agent_stay_in_order(store: Store, policy: int, database: Path) -> None:
    """A conversation in three trajectories, beside another agent's, is read part by part."""
    mine = group(3).episodes[0].trajectories[0]
    theirs = replace(mine, agent="other")
    parts = [replace(mine, tokens=np.array([n, 6, 7], np.int32)) for n in range(3)]
    episode = Episode(0, "ok", (parts[0], parts[1], parts[2], theirs))
    said = {(0, "agent", n): Transcript((("user", f"question {n}"),)) for n in range(3)}
    store.experience.add_group(policy, "train", replace(group(3), episodes=(episode, replace(episode, member=1))), said)
    (back,) = store.experience.waiting(policy)
    assert [(t.agent, t.tokens[0]) for t in back.episodes[0].trajectories] == [
        ("agent", 0), ("agent", 1), ("agent", 2), ("other", 5)
    ]  # fmt: skip
    with Reader(database) as reader:
        rows = [row for row in reversed(reader.trajectories(1)) if row.member == 0]
    assert [(row.agent, row.part) for row in rows] == [("agent", 0), ("agent", 1), ("agent", 2), ("other", 0)]
    assert [[turn.text for turn in row.turns] for row in rows] == [["question 0"], ["question 1"], ["question 2"], []]


def test_a_step_consumes_its_groups_once(store: Store, policy: int, database: Path) -> None:
    for number in (0, 1, 2):
        store.experience.add_group(policy, "train", group(number), {})
    commit(store, policy, 1, [0, 1])
    assert [g.number for g in store.experience.waiting(policy)] == [2]
    with Reader(database) as reader:
        (step,) = reader.steps(1)
        task = reader.task(1)
    assert step.metrics == {"reward": 0.5, "tokens": 4.0}
    assert task is not None and (task.step, task.tokens, task.adapter_version) == (1, 4, f"v1-i{store.incarnation}")


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


def test_voided_steps_give_their_groups_back(store: Store, policy: int) -> None:
    store.versions.commit_first(policy, NewVersion(0, "v0", "sum", "path", 9))
    for number in (0, 1):
        store.experience.add_group(policy, "train", group(number, number), {})
        commit(store, policy, number + 1, [number])
    store.versions.void_after(policy, 1)
    assert [v.number for v in store.versions.candidates(policy)] == [1, 0]
    assert [g.number for g in store.experience.waiting(policy)] == [1]
    store.experience.drop_unusable(policy, 0)
    assert store.experience.waiting(policy) == []


def test_names_are_unique_over_incarnations(database: Path) -> None:
    first, second = Store(database, "tiny"), None
    first.close()
    second = Store(database, "tiny")
    assert second.incarnation > first.incarnation
    second.close()


def test_best_and_last_are_labels_of_one_version_each(store: Store, policy: int, database: Path) -> None:
    store.versions.commit_first(policy, NewVersion(0, "v0", "sum", "path", 9))
    commit(store, policy, 1, [])
    store.versions.label(policy, {1: "last", 0: "best"})
    store.versions.label(policy, {1: "best, last"})
    with Reader(database) as reader:
        assert [v.label for v in reader.versions(1)] == ["best, last", ""]


def test_evaluations_of_a_series_replace_each_other(store: Store, policy: int, database: Path) -> None:
    version = store.versions.commit_first(policy, NewVersion(0, "v0", "sum", "path", 9))
    for score in (0.2, 0.4):
        store.evaluations.add(policy, version.id, Evaluation(0, "env1", score, 0.1, 64, 0.1, {"lenient": 0.5}))
    store.evaluations.add(policy, version.id, Evaluation(0, "env2", 0.9, 0.1, 64, None, {}))
    assert store.evaluations.measured(policy, "env1") == {0: 0.4}
    assert store.evaluations.scores(policy) == {0: 0.9}
    with Reader(database) as reader:
        assert [e.score for e in reader.evals(1)] == [0.4, 0.9]
