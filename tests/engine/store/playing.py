"""A task of several policies with plays in its store: two trained ones, one of which met others, too."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np

from marlaas.engine.queue.submission.taskfile import submission
from marlaas.engine.spec.task import NamedPolicySpec, TaskSpec
from marlaas.engine.store.experience import Beside, PolicyGroup
from marlaas.engine.store.store import Store
from marlaas.engine.store.submissions import submit
from marlaas.engine.store.versions import Evaluation, NewVersion
from marlaas.engine.trajectories import Episode, Group, Span, Split, Trajectory, Transcript

DUEL = TaskSpec(
    "lab",
    "duel",
    "duel",
    policies={
        "player": NamedPolicySpec(),
        "judge": NamedPolicySpec(),
        "rivals": NamedPolicySpec(pool="player"),
        "old": NamedPolicySpec(frozen="player@0"),
    },
    agents={"first": "player", "second": "rivals", "referee": "judge", "guest": "old"},
)


def said(agent: str, reward: float | None, version: int = 0) -> Trajectory:
    """A trajectory of two tokens, the second of which ``version`` sampled."""
    tokens = np.array([5, 6], np.int32)
    return Trajectory(
        agent,
        tokens,
        np.array([0, 1], np.uint8),
        np.array([0, -0.5], np.float32),
        (Span(1, 2, version),),
        reward,
        0.25,
    )


def part(policy: int, number: int, version: int, *members: tuple[Trajectory, ...]) -> PolicyGroup:
    """What a policy gets of a play; everybody says who they are."""
    episodes = tuple(Episode(place, "ok", own) for place, own in enumerate(members))
    words = {
        (place, one.agent, 0): Transcript((("user", "go"), ("assistant", f"{one.agent} {place}")))
        for place, own in enumerate(members)
        for one in own
    }
    return PolicyGroup(policy, Group(number, number, version, "e1", episodes, 0), words)


def beside(policy: str, *members: tuple[Trajectory, ...]) -> Beside:
    """What somebody said who learns nothing from it."""
    other = part(0, 0, 0, *members)
    return Beside(policy, other.group.episodes, other.transcripts)


def duel(store: Store, database: Path) -> tuple[int, Mapping[str, int]]:
    """The task and its trained policies: a play of two members, one without the judge, an evaluation."""
    (task,) = submit(database, [submission(DUEL)])
    policies = {name: store.versions.policy(task, name, {}) for name in ("player", "judge")}
    player, judge = policies.values()
    store.experience.add_play(
        "train",
        [
            part(player, 0, 1, (said("first", 1.0, 1),), (said("first", 0.0, 1),)),
            part(judge, 0, 2, (said("referee", 0.5, 2),), (said("referee", 0.75, 2),)),
        ],
        [beside("rivals", (said("second", 0.0, 3),), (said("second", 1.0, 3),))],
    )
    store.experience.add_play(
        "train",
        [part(player, 1, 1, (said("first", 0.5, 1),)), part(judge, 1, 2)],
        [beside("old", (said("guest", 0.5),))],
    )
    _evaluate(store, "eval", player)
    for name, policy in policies.items():
        new = NewVersion(1, f"task-{task}/{name}-v1", "sum", "path", 9)
        made = store.versions.commit_step(
            policy, new, [0], 0.5, {"reward": len(name) / 10, "staleness": 1.0, "tokens": len(name)}
        )
        store.evaluations.add(
            policy,
            made.id,
            Evaluation(
                step=1,
                environment_version="e1",
                score=len(name) / 8,
                stderr=0.1,
                n=4,
                floor=0.25,
                metrics={},
                prompts=4,
            ),
        )
    return task, policies


def _evaluate(store: Store, split: Split, player: int) -> None:
    one = part(player, 0, 1, (said("second", 1.0, 1),))
    store.experience.add_play(split, [one], [beside("player@0", (said("first", 0.0),))], step=1)
