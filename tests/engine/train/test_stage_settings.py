"""What a task file says of rewards and groups; and that a restart comes to the same advantages."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from marlaas.engine.queue.submission.taskfile import submission
from marlaas.engine.spec.losses import PUBLISHED
from marlaas.engine.spec.task import SamplingSpec, TaskSpec, TrainSpec
from marlaas.engine.store.store import Store
from marlaas.engine.store.submissions import submit
from marlaas.engine.train.opening import closing_rules, policy_config, replacements
from marlaas.engine.trainer.advantages import ClosedGroup, close_group
from marlaas.engine.trajectories import Episode, Group

from ..trainer.test_advantages import replied as said

LIMITS = SamplingSpec(max_tokens=10, max_episode_tokens=16)


def task(train: TrainSpec) -> TaskSpec:
    return TaskSpec("lab", "sums", "sums", train=train, sampling=LIMITS)


@pytest.mark.parametrize("loss", PUBLISHED)
def test_auto_is_what_the_loss_was_published_with(loss: str) -> None:
    assert closing_rules(task(TrainSpec(loss=loss))).advantage == PUBLISHED[loss].advantage
    assert closing_rules(task(TrainSpec(loss=loss, advantage="leave_one_out"))).advantage == "leave_one_out"


@pytest.mark.parametrize("loss", PUBLISHED)
def test_the_trainer_accepts_what_a_task_file_says(loss: str) -> None:
    config = policy_config(task(TrainSpec(loss=loss, learning_rate=1e-4, schedule="cosine", warmup=3, epochs=2)))
    assert (config.steps, config.warmup, config.epochs) == (60, 3, 2)
    assert config.denominator == {"constant": 64 * 16, "token": 1}.get(PUBLISHED[loss].mean, 64)


def test_the_loss_or_the_author_has_groups_replaced() -> None:
    assert [loss for loss in PUBLISHED if replacements(task(TrainSpec(loss=loss)))] == ["dapo"]
    assert replacements(task(TrainSpec(dynamic_sampling=True))) == 8
    assert replacements(task(TrainSpec(loss="dapo", dynamic_sampling=False))) == 0


@pytest.mark.parametrize("overlong", ["keep", "mask", "penalty"])
def test_a_stored_group_closes_as_it_did(tmp_path: Path, overlong: str) -> None:
    rules = closing_rules(task(TrainSpec(group_size=4, overlong=overlong, overlong_buffer=4, advantage="standard")))
    rewards = (1.0, 0.0, 0.75, 1.0)
    trajectories = (said(10, cut=True), said(3), said(8), said(7, 6))
    episodes = tuple(
        Episode(member, "ok", (replace(one, reward=reward),))
        for member, (one, reward) in enumerate(zip(trajectories, rewards, strict=True))
    )
    closed = close_group(Group(0, 0, 0, "e", episodes), rules)
    assert isinstance(closed, ClosedGroup)
    store = Store(tmp_path / "marlaas.db", "tiny")
    (number,) = submit(tmp_path / "marlaas.db", [submission(task(TrainSpec()))])
    policy = store.versions.policy(number, "policy", {})
    store.experience.add_group(policy, "train", closed.group, {})
    (waiting,) = store.experience.waiting(policy)
    again = close_group(waiting, rules)
    store.close()
    assert isinstance(again, ClosedGroup) and again.rewards == closed.rewards
    first, second = ([t.advantage for e in one.group.episodes for t in e.trajectories] for one in (closed, again))
    assert first == second and len(set(first)) > 2
