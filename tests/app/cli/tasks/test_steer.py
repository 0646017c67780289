"""pause, resume, cancel and wait: what the engine answers decides the exit code."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import pytest

from marlaas.app.operations import commands, commands as progress
from marlaas.app.operations.commands import Follower
from marlaas.app.reading import opened
from marlaas.engine.errors import EngineUnreachable
from marlaas.engine.home.paths import Home
from marlaas.engine.store.rows import TaskRow

from ...commanding import Commander, FakeEngine
from ...filling import Filling


class Clock:
    """Time that passes only when somebody sleeps; then something may happen."""

    def __init__(self, happens: Callable[[float], None] = lambda now: None) -> None:
        self.now, self._happens = 0.0, happens

    def sleep(self, seconds: float) -> None:
        self.now += seconds
        self._happens(self.now)

    def __call__(self) -> float:
        return self.now


def use(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    """Waiting for the engine goes by this clock."""
    wait = partial(commands.wait_for_outcomes, sleep=clock.sleep, clock=clock)
    monkeypatch.setattr(commands, "wait_for_outcomes", wait)


@pytest.fixture
def answering(filling: Filling, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Makes the pretended engine answer each command as soon as anybody waits."""

    def answer(outcome: str) -> None:
        clock = Clock(lambda now: filling.execute("UPDATE commands SET done = 1, outcome = ?", outcome))
        use(clock, monkeypatch)

    return answer


@pytest.mark.parametrize(("verb", "past"), [("pause", "paused"), ("resume", "resumed"), ("cancel", "cancelled")])
def test_success(
    filling: Filling, marlaas: Commander, engine: FakeEngine, answering: Callable[[str], None], verb: str, past: str
) -> None:
    for _ in range(2):
        filling.task()
    answering("")
    said = marlaas(verb, "1", "2", "1")
    assert (said.code, said.err) == (0, f"Task 1 {past}.\nTask 2 {past}.\n")


def test_refusal(filling: Filling, marlaas: Commander, engine: FakeEngine, answering: Callable[[str], None]) -> None:
    filling.task(state="done")
    answering("A task that is done cannot be paused.\x1b[31m")
    said = marlaas("pause", "1")
    assert (said.code, said.err) == (2, "marlaas: Task 1: A task that is done cannot be paused.\n")


def test_no_answer(filling: Filling, marlaas: Commander, engine: FakeEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    filling.task()
    clock = Clock()
    use(clock, monkeypatch)
    said = marlaas("pause", "1")
    assert said.code == 3 and "has not answered" in said.err


def test_no_engine(filling: Filling, marlaas: Commander, engine: FakeEngine, home: Home) -> None:
    filling.task()
    engine.living = False
    said = marlaas("cancel", "1")
    assert said.code == 3 and "marlaas engine start" in said.err
    with opened(home) as reader:
        assert reader.command_outcomes([1]) == {}


def test_wait(filling: Filling, marlaas: Commander, engine: FakeEngine) -> None:
    filling.task(state="done", made=60)
    filling.task(state="failed", reason="the environment failed")
    filling.task(state="running", made=3)
    assert marlaas("wait", "1").code == 0
    said = marlaas("wait", "1", "2")
    assert said.code == 1 and said.out == "" and "the environment failed" in said.err
    said = marlaas("wait", "3", "--timeout", "0", "--json")
    assert said.code == 1 and "Unfinished after 0 s: 3." in said.err and said.json[0]["state"] == "running"


class Story:
    """A task that goes through states, one each time it is read."""

    def __init__(self, filling: Filling, home: Home, *states: str) -> None:
        filling.task(state=states[0], made=1)
        self._filling, self._home, self._states = filling, home, list(states)

    def read(self) -> list[TaskRow]:
        self._filling.execute("UPDATE tasks SET state = ?", self._states[0])
        if len(self._states) > 1:
            self._states.pop(0)
        with opened(self._home) as reader:
            return reader.tasks()


def test_following_says_each_change_once(filling: Filling, home: Home) -> None:
    said: list[str] = []
    clock = Clock()
    story = Story(filling, home, "queued", "queued", "running", "running", "done")
    tasks = Follower(story.read, lambda: True, said.append, sleep=clock.sleep, clock=clock).follow()
    assert [line.split()[3] for line in said] == ["queued", "running", "done"]
    assert tasks[0].state == "done" and clock.now == 4


def test_following_a_dead_engine_ends(filling: Filling, home: Home) -> None:
    clock = Clock()
    story = Story(filling, home, "running")
    with pytest.raises(EngineUnreachable, match="marlaas engine start"):
        Follower(story.read, lambda: False, lambda text: None, sleep=clock.sleep, clock=clock).follow()
    assert progress.GRACE_SECONDS < clock.now < progress.GRACE_SECONDS + 3


def test_nobody_resumes_a_paused_demo(filling: Filling, home: Home) -> None:
    story = Story(filling, home, "paused")
    tasks = Follower(story.read, lambda: True, lambda text: None, paused_ends=True).follow()
    assert tasks[0].state == "paused"


def family(filling: Filling, *states: str, tenant: str = "physics-lab", created: float = 5.0) -> None:
    """A sweep called "sums" whose members are in these states."""
    for state in states:
        number = filling.task(tenant=tenant, state=state)
        filling.execute("UPDATE tasks SET family = 'sums', created = ? WHERE id = ?", created, number)


def test_a_sweep_is_steered_by_its_name(
    filling: Filling, marlaas: Commander, engine: FakeEngine, answering: Callable[[str], None]
) -> None:
    family(filling, "failed", created=1.0)
    family(filling, "running", "done", "failed", "queued", "cancelled")
    answering("")
    assert marlaas("pause", "--family", "sums").err == "Task 2 paused.\nTask 5 paused.\n"
    assert marlaas("retry", "--family", "sums").err == "Task 4 retried.\nTask 6 retried.\n"
    said = marlaas("resume", "--family", "sums")
    assert said.code == 2 and "None of these tasks can be resumed: they are cancelled, done, failed" in said.err


def test_a_sweep_must_be_one(filling: Filling, marlaas: Commander, engine: FakeEngine) -> None:
    family(filling, "done")
    assert marlaas("wait", "--family", "sums").code == 0
    family(filling, "done", tenant="bio")
    said = marlaas("wait", "--family", "sums")
    assert said.code == 2 and "Several tenants have a sweep 'sums': bio, physics-lab." in said.err
    assert marlaas("wait", "--family", "sums", "--tenant", "bio").code == 0
    assert (
        "There is no sweep 'sum'. \n  Did you mean 'sums'?".replace(" \n", "\n")
        in marlaas("wait", "--family", "sum").err
    )
    assert "No task is given." in marlaas("cancel").err
