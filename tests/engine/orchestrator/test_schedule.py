"""Who starts, and what the others are told."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from marlaas.engine.orchestrator.schedule import decide
from marlaas.engine.spec import QueueSpec, TaskSpec
from marlaas.engine.store.tasks import QueuedTask


def queued(number: int, state: str = "queued", depends_on: tuple[int, ...] = ()) -> QueuedTask:
    return QueuedTask(number, state, "", TaskSpec("t", "n", "e", queue=QueueSpec(depends_on=depends_on)))


@given(st.lists(st.sampled_from(["submitted", "queued", "running", "paused"]), max_size=12), st.integers(1, 5))
def test_never_more_than_the_slots_and_never_an_idle_one(states: list[str], slots: int) -> None:
    tasks = [queued(number, state) for number, state in enumerate(states)]
    running = {task.id for task in tasks if task.state == "running"}
    running = set(sorted(running)[:slots])
    verdicts = decide(tasks, running, slots, {})
    started = [number for number, verdict in verdicts.items() if verdict.start]
    waiting = [number for number, verdict in verdicts.items() if not verdict.start]
    assert len(running) + len(started) <= slots
    assert not waiting or len(running) + len(started) == slots
    assert all(verdicts[number].reason for number in waiting)
    assert not set(verdicts) & running
    assert all(task.state != "paused" for task in tasks if task.id in verdicts)


def test_dependencies_wait_fail_and_start() -> None:
    tasks = [
        queued(5, depends_on=(1,)),
        queued(6, depends_on=(2,)),
        queued(7, depends_on=(3,)),
        queued(8, depends_on=(4,)),
    ]
    verdicts = decide(tasks, set(), 8, {1: "done", 2: "running", 3: "failed"})
    assert verdicts[5].start
    assert "task 2, which is running" in verdicts[6].reason and not verdicts[6].failed
    assert verdicts[7].failed and "failed" in verdicts[7].reason
    assert verdicts[8].failed and "does not exist" in verdicts[8].reason
