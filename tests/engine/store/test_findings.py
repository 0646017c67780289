"""What went wrong in learning, as the store keeps it and gives it to people."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from marlaas.engine.store.queries.reader import Reader
from marlaas.engine.store.rows import FindingRow, findings_of
from marlaas.engine.store.store import Store
from marlaas.engine.store.versions import Known, NewFinding, NewVersion, Said
from marlaas.engine.trajectories import Episode, Group, Span, Trajectory, Transcript

FOUND = NewFinding("large_steps", 3, {"moved": 1.5}, (7, 8, 9))


def steps(store: Store, policy: int, many: int) -> None:
    """Commit so many steps with a few metrics."""
    store.versions.commit_first(policy, NewVersion(0, "v0", "sum", "v0", 9))
    for n in range(1, many + 1):
        metrics = {"reward": n / 10, "moved": float("nan") if n == 2 else 0.5}
        store.versions.commit_step(policy, NewVersion(n, f"v{n}", "sum", f"v{n}", 9), [], 1.0, metrics)


def test_each_kind_is_kept_once(store: Store, policy: int, database: Path) -> None:
    findings = store.findings
    assert findings.add(policy, FOUND, pauses=False)
    assert not findings.add(policy, NewFinding("large_steps", 9, {"moved": 9.0}), pauses=True)
    assert findings.known(policy) == {"large_steps": Known(3, holds=True, pending=False)}
    with Reader(database) as reader:
        (task,) = reader.tasks()
    (row,) = task.findings
    assert row == FindingRow("policy", 3, "large_steps", {"moved": 1.5}, (7, 8, 9), True, row.created)


def test_a_finding_lapses_and_comes_back(store: Store, policy: int) -> None:
    store.findings.add(policy, FOUND, pauses=False)
    store.findings.lapse(policy, ["large_steps", "one_reply"])
    assert not store.findings.known(policy)["large_steps"].holds
    store.findings.add(policy, FOUND, pauses=False)
    assert store.findings.known(policy)["large_steps"].holds


def test_a_person_who_resumes_the_task_has_seen_it(store: Store, policy: int) -> None:
    store.findings.add(policy, FOUND, pauses=True)
    store.tasks.set_state(1, "running")
    assert store.findings.known(policy)["large_steps"].pending
    store.tasks.set_state(1, "queued", fresh=True)
    assert not store.findings.known(policy)["large_steps"].pending


@pytest.mark.parametrize(("kept", "left"), [(3, 1), (2, 0), (-1, 0)])
def test_voided_steps_take_their_findings_along(store: Store, policy: int, kept: int, left: int) -> None:
    steps(store, policy, 5)
    store.findings.add(policy, FOUND, pauses=False)
    store.versions.void_after(policy, kept)
    assert len(store.findings.known(policy)) == left


def test_newest_first_and_what_is_unknown_is_kept() -> None:
    text = (
        '[{"policy": "p", "code": "a", "step": 3, "evidence": {}, "rollouts": [], "holds": 0, "created": 1.0},'
        ' {"policy": "p", "code": "new", "step": 9, "evidence": {"x": 1}, "rollouts": [4], "holds": 1, "created": 2.0}]'
    )
    assert [(row.code, row.holds, row.rollouts) for row in findings_of(text)] == [("new", True, (4,)), ("a", False, ())]
    assert findings_of(None) == ()


def test_only_steps_on_the_newest_environment_are_seen(store: Store, policy: int) -> None:
    steps(store, policy, 9)
    store._database.execute("UPDATE steps SET environment_version = CASE WHEN number < 4 THEN 'a' ELSE 'b' END")
    seen = store.findings.seen(policy, ["reward", "moved"], first=2, last=3)
    assert [(one.step, one.environment_version) for one in seen] == [(4, "b"), (5, "b"), (7, "b"), (8, "b"), (9, "b")]
    assert seen[0].metrics == {"reward": 0.4, "moved": 0.5}
    assert store.findings.environment_at(policy, 3) == "a"


def test_what_is_no_number_is_left_out(store: Store, policy: int) -> None:
    steps(store, policy, 3)
    assert [one.metrics.get("moved") for one in store.findings.seen(policy, ["moved", "reward"], 9, 9)] == [
        0.5,
        None,
        0.5,
    ]
    assert store.findings.seen(store.versions.policy(1, "other", {}), ["moved"], 9, 9) == []


def test_what_was_said_at_a_step(store: Store, policy: int) -> None:
    def episode(member: int, status: str = "ok") -> Episode:
        tokens = np.array([1, 2, 3], np.int32)
        mask = np.array([0, 1, 1], np.uint8)
        one = Trajectory(
            "agent", tokens, mask, np.zeros(3, np.float32), (Span(1, 3, 0),), float(member), cut=member == 1
        )
        return Episode(member, status, (one,))  # type: ignore[arg-type]

    episodes = (episode(0), episode(1), episode(2, "timeout"))
    texts = {
        (member, "agent", 0): Transcript((("user", "1+1="), ("thinking", "hm"), ("assistant", str(member))))
        for member in range(3)
    }
    store.experience.add_group(policy, "train", Group(0, 0, 0, "e1", episodes), texts)
    store.experience.add_group(policy, "eval", Group(4, 4, 0, "e1", episodes), texts, step=1)
    steps(store, policy, 0)
    store.versions.commit_step(policy, NewVersion(1, "v1", "sum", "v1", 9), [0], 1.0, {})
    said = store.findings.said(policy, 1)
    assert [replaced(one) for one in said] == [("0", 0, 0.0, False), ("1", 1, 1.0, True)]
    assert [one.group for one in store.findings.said(policy, 1, "eval")] == [4, 4]
    assert store.findings.said(policy, 1, "eval", suites=["other"]) == []


def replaced(one: Said) -> tuple[str, int, float | None, bool]:
    return one.replies, one.member, one.reward, one.cut
