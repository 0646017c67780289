"""SQL statements for what is stored most often: a group of eight members, and an optimizer step."""

from __future__ import annotations

import tempfile
from pathlib import Path

import numpy as np

from marlaas.engine.daemon.control import create_database
from marlaas.engine.home.paths import Home
from marlaas.engine.queue.submission.taskfile import submission
from marlaas.engine.spec.task import TaskSpec
from marlaas.engine.store.store import Store
from marlaas.engine.store.submissions import submit
from marlaas.engine.store.versions import NewVersion
from marlaas.engine.trajectories import Episode, Group, Span, Trajectory, Transcript

from .watching import Seen, statements

MEMBERS, GROUPS = 8, 8
TOKENS, ANSWER = 20, 6


def measure() -> dict[str, float]:
    """Statements by name; a row of a statement that writes many is one statement."""
    with tempfile.TemporaryDirectory(prefix="marlaas-guard-") as folder:
        home = Home(Path(folder) / "home")
        create_database(home)
        (task,) = submit(home.database, [submission(TaskSpec("guard", "sums", "arithmetic", 2))])
        store = Store(home.database, "tiny")
        try:
            return _stored(store, task)
        finally:
            store.close()


def _stored(store: Store, task: int) -> dict[str, float]:
    policy = store.versions.policy(task, "policy", {})
    store.versions.commit_first(policy, NewVersion(0, "v0", "sum", "v0", 1))
    texts = {(member, "agent", 0): Transcript((("user", "1+1="), ("assistant", "2"))) for member in range(MEMBERS)}
    counted = []
    for number in range(GROUPS):
        counted.append(Seen())
        with statements(counted[-1], store):
            store.experience.add_group(policy, "train", _group(number), texts)
    if any(one != counted[0] for one in counted):
        raise AssertionError("Groups that are alike were stored in different ways.")
    stepped = Seen()
    with statements(stepped, store):
        metrics = {f"metric {number}": float(number) for number in range(10)}
        store.versions.commit_step(policy, NewVersion(1, "v1", "sum", "v1", 1), list(range(GROUPS)), 0.1, metrics)
    found = {f"a group of {MEMBERS} members stored": counted[0], f"a step of {GROUPS} groups stored": stepped}
    return {f"{words}: {name}": count for words, seen in found.items() for name, count in seen.counts().items()}


def _group(number: int) -> Group:
    mask = np.repeat(np.array([0, 1], np.uint8), (TOKENS - ANSWER, ANSWER))
    said = Trajectory(
        agent="agent",
        tokens=np.arange(TOKENS, dtype=np.int32),
        mask=mask,
        logprobs=-mask.astype(np.float32),
        spans=(Span(TOKENS - ANSWER, TOKENS, 0),),
        reward=1.0,
    )
    episodes = tuple(Episode(member, "ok", (said,)) for member in range(MEMBERS))
    return Group(number=number, index=number, version=0, environment_version="one", episodes=episodes)
