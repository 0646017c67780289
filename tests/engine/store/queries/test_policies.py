"""Tasks of several policies: who they are, how far each has come, and what is asked of one of them."""

from __future__ import annotations

from pathlib import Path

from marlaas.engine.store.queries.learning import evals_made, history, metric_samples
from marlaas.engine.store.queries.reader import Reader
from marlaas.engine.store.rows import PolicyRow, ScoreBasis
from marlaas.engine.store.store import Store

from ..playing import duel


def test_all_policies_of_a_task_in_the_order_of_its_file(store: Store, database: Path) -> None:
    task, _ = duel(store, database)
    with Reader(database) as reader:
        row = reader.task(task)
        alone = reader.task(1)
    assert row is not None and alone is not None and alone.policies == ()
    player, judge, opponent_pool, old = row.policies
    assert player == PolicyRow(
        "player",
        ("first",),
        step=1,
        reward=0.6,
        score=0.75,
        best=0.75,
        floor=0.25,
        adapter_version=f"task-{task}/player-v1",
        staleness=1.0,
        tokens=6,
        basis=ScoreBasis(0.1, 4, prompts=4),
    )
    assert (judge.reward, judge.score, judge.tokens, judge.trained) == (0.5, 0.625, 5, True)
    assert opponent_pool == PolicyRow("rivals", ("second",), pool="player") and not opponent_pool.trained
    assert old == PolicyRow("old", ("guest",), frozen="player@0") and not old.trained
    assert (row.reward, row.score) == (0.6, 0.75), "the task's own are those of the first that it trains"


def test_what_a_task_learned_is_asked_of_one_policy(store: Store, database: Path) -> None:
    task, _ = duel(store, database)
    with Reader(database) as reader:
        for policy, reward, score in ((None, 0.6, 0.75), ("player", 0.6, 0.75), ("judge", 0.5, 0.625)):
            (step,) = reader.steps(task, policy=policy)
            assert step.metrics["reward"] == reward and reader.rewards(task, policy=policy) == [reward]
            assert [row.score for row in reader.evals(task, policy=policy)] == [score]
            assert history(reader, task, ["reward"], policy=policy).tracks["reward"].at(1) == reward
            assert metric_samples(reader, task, policy=policy)["reward"].at(1) == reward
        assert evals_made(reader, task, "player") != evals_made(reader, task, "judge")
        assert reader.steps(task, policy="nobody") == [] and reader.evals(task, policy="rivals") == []


def test_the_newest_group_comes_with_its_whole_play(store: Store, database: Path) -> None:
    task, _ = duel(store, database)
    with Reader(database) as reader:
        (own, guest) = reader.newest_group(task)
        assert [row.agent for row in reader.newest_group(task, "judge")] == ["first", "guest"], "it did not speak there"
    assert (own.agent, own.policy, own.speaker) == ("first", "player", "")
    assert (guest.agent, guest.policy, guest.speaker) == ("guest", "player", "old")


def test_the_newest_rollout_is_one_of_its_own_with_a_reward(store: Store, database: Path) -> None:
    task, _ = duel(store, database)
    with Reader(database) as reader:
        for policy in (None, "player", "judge"):
            found = reader.newest_rollout(task, policy)
            assert found is not None and found.reward is not None and found.turns
            assert found in reader.newest_group(task, policy)
        player = reader.newest_rollout(task, "player")
        assert player is not None and player.speaker == "", "what a policy said itself comes before what others said"
        assert reader.newest_rollout(task, "nobody") is None
