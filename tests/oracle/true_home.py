"""Homes for the checker's tests: a real store and real training on a tiny base, without samplers and environments."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import numpy as np

from marlaas.engine.home.paths import Home
from marlaas.engine.machine.services import Services
from marlaas.engine.models.find import load_base
from marlaas.engine.queue.submission.taskfile import submission
from marlaas.engine.spec.task import KeepSpec, PolicySpec, SamplingSpec, TaskSpec, TrainSpec
from marlaas.engine.store.store import Store
from marlaas.engine.store.submissions import submit
from marlaas.engine.train.metrics import StepTally
from marlaas.engine.train.opening import closing_rules, key, new_version, open_policy, version_path
from marlaas.engine.trainer.advantages import ClosedGroup, close_group, train_group
from marlaas.engine.trainer.torch_trainer import TorchTrainer
from marlaas.engine.trajectories import Episode, Group, Span, Trajectory, TurnReward
from tests.engine.trainer.tiny_qwen import VOCABULARY

BATCH, SIZE, STEPS = 2, 3, 3


def spec(train: TrainSpec | None = None) -> TaskSpec:
    train = train or TrainSpec(groups_per_step=BATCH, group_size=SIZE, max_staleness=1, learning_rate=1e-3)
    sampling = SamplingSpec(max_tokens=8, max_episode_tokens=16)
    return TaskSpec(
        "lab", "sums", "sums", steps=STEPS, policy=PolicySpec(4, 8.0), train=train, sampling=sampling, keep=KeepSpec(1)
    )


def group(number: int, version: int) -> Group:
    """Random tokens, rewards and payments from the number; the last member's trajectory is in two parts."""
    draw = np.random.default_rng(number)
    episodes = [Episode(member, "ok", (_trajectory(draw, version),)) for member in range(SIZE - 1)]
    parts = (_trajectory(draw, version, reward=0.25), _trajectory(draw, version, reward=0.25))
    paid = (TurnReward("agent", 1, float(draw.normal()), "try"), TurnReward("agent", 2, 0.125))
    return Group(number, number, version, "e1", (*episodes, Episode(SIZE - 1, "ok", parts, paid=paid)))


def _trajectory(draw: np.random.Generator, version: int, reward: float | None = None) -> Trajectory:
    prompt, length = int(draw.integers(2, 5)), int(draw.integers(8, 13))
    mask = np.array([0] * prompt + [1] * (length - prompt), np.uint8)
    logprobs = (draw.uniform(-5, -1, length) * mask).astype(np.float32)
    tokens = draw.integers(0, VOCABULARY, length).astype(np.int32)
    spans = (Span(prompt, length, version),)
    return Trajectory("agent", tokens, mask, logprobs, spans, float(draw.random()) if reward is None else reward)


def _equal(group: Group) -> Group:
    """The same with equal rewards."""
    episodes = (
        replace(one, trajectories=tuple(replace(t, reward=0.5) for t in one.trajectories)) for one in group.episodes
    )
    return replace(group, episodes=tuple(episodes))


@dataclass(frozen=True)
class Slip:
    """What is odd while a home is made: a group that the trainer does not see, a step without unequal rewards."""

    forgotten: int = -1
    silent: int = -1


async def make_home(root: Path, base: str, task: TaskSpec, slip: Slip | None = None) -> Home:
    """Train a task's steps and write everything down as the engine does."""
    home = Home(root).create()
    store = Store(home.database, base, "print")
    (number,) = submit(home.database, [submission(task)])
    store.tasks.adopt("print")
    await go_on(home, store, base, number, task, slip)
    store.close()
    return home


async def go_on(home: Home, store: Store, base: str, number: int, task: TaskSpec, slip: Slip | None = None) -> None:
    """Train a task from wherever it stands to its last step."""
    slip = slip or Slip()
    trainer = TorchTrainer(base, "print", sync=False)
    services = cast(Services, SimpleNamespace(home=home, store=store, trainer=trainer, base=load_base(base)))
    policy, rules, name = store.versions.policy(number, "policy", {}), closing_rules(task), key(number, "policy")
    version = await open_policy(services, number, policy, "policy", task)
    waiting = {one.number: one for one in store.experience.waiting(policy)}
    for step in range(version.number, task.steps):
        tally = StepTally(step)
        for place in range(step * BATCH, (step + 1) * BATCH):
            drawn = waiting.get(place) or group(place, max(0, step - place % 2))
            closed = close_group(_equal(drawn) if step == slip.silent else drawn, rules)
            assert isinstance(closed, ClosedGroup)
            if place not in waiting:
                store.experience.add_group(policy, "train", closed.group, {})
            lesson = train_group(closed.group, overlong=rules.overlong)
            tally.add([closed], await trainer.accumulate(name, () if place == slip.forgotten else (lesson,)))
        result = await trainer.step(name, str(version_path(services, number, "policy", step + 1)))
        store.versions.commit_step(policy, new_version(result), tally.numbers, 1.0, tally.metrics(result, 1.0))
    store.tasks.set_state(number, "done")
    trainer.shutdown()
