"""A home with a task that measures versions, written by the store itself."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

from marlaas.engine.queue.submission.taskfile import submission
from marlaas.engine.spec.task import EvalSpec, TaskSpec
from marlaas.engine.store.experience import PolicyGroup
from marlaas.engine.store.store import Store
from marlaas.engine.store.submissions import submit
from marlaas.engine.store.versions import Evaluation
from marlaas.engine.trajectories import Episode, Group, Transcript
from tests.engine.store.playing import said

from .filling import NOW, Filling

MEASURE = TaskSpec(
    "lab",
    "three versions",
    "arithmetic",
    steps=3,
    kind="eval",
    versions=("1@best", "1@3", "base"),
    eval=EvalSpec(prompts=4),
)
REWARDS = {"1@best": (1.0, 1.0, 1.0, 0.0), "1@3": (0.0, 1.0, 0.0, 0.0)}


def fill_evaluation(path: Path, now: float = NOW) -> Filling:
    """Task 1 was trained; task 2 has measured two of its three versions."""
    filling = Filling(path, now)
    filling.engine()
    filling.environment()
    filling.task(made=3)
    store = Store(path, "tiny")
    with closing(store):
        (task,) = submit(path, [submission(MEASURE)])
        for number, (words, rewards) in zip((2, 3), REWARDS.items(), strict=True):
            policy = store.versions.policy(task, words, {})
            for prompt, reward in enumerate(rewards):
                told = {(0, "agent", 0): Transcript((("user", f"{prompt} + 2 ="), ("assistant", words)))}
                episode = Episode(0, "ok", (said("agent", reward, number),))
                part = PolicyGroup(policy, Group(prompt, prompt, number, "e1", (episode,), 0), told)
                store.experience.add_play("eval", [part], step=number)
            score = sum(rewards) / 4
            store.evaluations.add(
                policy,
                0,
                Evaluation(
                    step=number,
                    environment_version="e1",
                    score=score,
                    stderr=0.25,
                    n=4,
                    floor=0.125,
                    metrics={},
                    prompts=4,
                ),
            )
            store.versions.mark_measured(policy)
        store.versions.policy(task, "base", {})
    filling.execute("UPDATE tasks SET state = 'running', created = ? WHERE id = ?", now - 60, task)
    filling.execute("DELETE FROM engines WHERE incarnation = ?", store.incarnation)
    return filling
