"""Tasks are paused, resumed, extended, waited for and watched; tenants are set; the engine's answer decides."""

from __future__ import annotations

import io
import json
import sys
import time
from collections.abc import Callable
from functools import partial

import pytest

from marlaas.app.cli import tasks
from marlaas.app.cli.terminal import Waiting
from marlaas.app.operations import commands
from marlaas.app.operations.commands import Follower, sentence
from marlaas.app.reading import opened
from marlaas.engine.errors import EngineUnreachable
from marlaas.engine.home.paths import Home

from ..commanding import Commander, FakeEngine
from ..filling import Filling
from .conftest import Outcome, commands_of

REAL_WAIT = commands.wait_for_outcomes


class Clock:
    """Time that passes only when somebody sleeps; then something may happen."""

    def __init__(self, happens: Callable[[float], None] = lambda now: None) -> None:
        self.now, self._happens = 0.0, happens

    def sleep(self, seconds: float) -> None:
        self.now += seconds
        self._happens(self.now)

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def answering(filling: Filling, monkeypatch: pytest.MonkeyPatch) -> Outcome:
    """Makes the pretended engine answer each command as soon as anybody waits; "silence": time passes, no more."""

    def answer(outcome: str) -> None:
        done = "UPDATE commands SET done = 1, outcome = ?"
        clock = Clock(lambda now: None if outcome == "silence" else filling.execute(done, outcome))
        wait = partial(REAL_WAIT, sleep=clock.sleep, clock=clock)
        monkeypatch.setattr(commands, "wait_for_outcomes", wait)

    return answer


@pytest.mark.parametrize(("verb", "past"), [("pause", "paused"), ("resume", "resumed"), ("cancel", "cancelled")])
def test_success(
    filling: Filling, marlaas: Commander, engine: FakeEngine, answering: Outcome, verb: str, past: str
) -> None:
    for _ in range(2):
        filling.task()
    answering("")
    said = marlaas(verb, "1", "2", "1")
    assert (said.code, said.err) == (0, f"Task 1 {past}.\nTask 2 {past}.\n")


def test_no_engine_no_answer_and_a_refusal(
    filling: Filling, marlaas: Commander, engine: FakeEngine, answering: Outcome, home: Home
) -> None:
    filling.task(state="done")
    engine.living = False
    said = marlaas("cancel", "1")
    assert said.code == 3 and "marlaas engine start" in said.err and commands_of(home) == []
    engine.living = True
    answering("silence")
    said = marlaas("pause", "1")
    assert said.code == 3 and "has not answered" in said.err
    answering("A task that is done cannot be paused.\x1b[31m")
    said = marlaas("pause", "1")
    assert (said.code, said.err) == (2, "marlaas: Task 1: A task that is done cannot be paused.\n")


def test_wait(filling: Filling, marlaas: Commander, engine: FakeEngine) -> None:
    filling.task(state="done", made=60)
    filling.task(state="failed", reason="the environment failed")
    filling.task(state="running", made=3)
    assert marlaas("wait", "1").code == 0
    said = marlaas("wait", "1", "2")
    assert said.code == 1 and said.out == "" and "the environment failed" in said.err
    said = marlaas("wait", "3", "--timeout", "0", "--json")
    assert said.code == 1 and "Unfinished after 0 s: 3." in said.err and said.json[0]["state"] == "running"


def test_following_a_dead_engine_ends(filling: Filling, home: Home) -> None:
    filling.task(state="running", made=1)
    clock = Clock()
    with opened(home) as reader, pytest.raises(EngineUnreachable, match="marlaas engine start"):
        Follower(reader.tasks, lambda: False, lambda text: None, sleep=clock.sleep, clock=clock).follow()
    assert commands.GRACE_SECONDS < clock.now < commands.GRACE_SECONDS + 3


def family(filling: Filling, *states: str, tenant: str = "physics-lab", created: float = 5.0) -> None:
    """A sweep called "sums" whose members are in these states."""
    for state in states:
        number = filling.task(tenant=tenant, state=state)
        filling.execute("UPDATE tasks SET family = 'sums', created = ? WHERE id = ?", created, number)


def test_a_sweep_is_steered_by_its_name(
    filling: Filling, marlaas: Commander, engine: FakeEngine, answering: Outcome
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


def test_more_steps_and_another_priority(
    filling: Filling, home: Home, marlaas: Commander, engine: FakeEngine, outcome: Outcome
) -> None:
    filling.task(steps=60)
    filling.task(steps=1000)
    engine.living = False
    outcome("")
    said = marlaas("extend", "1", "2", "--steps", "40")
    assert (said.code, said.err) == (0, "Task 1 has 100 steps.\nTask 2 has 1,040 steps.\n")
    assert engine.asked[0] == "start"
    assert marlaas("extend", "1", "--priority", "-3").err == "Task 1 has priority -3.\n"
    steps = [("extend", 1, {"steps": 100}), ("extend", 2, {"steps": 1040})]
    assert commands_of(home) == [*steps, ("priority", 1, {"priority": -3})]
    assert marlaas("extend", "1").code == 2


def test_given_tasks_that_have_ended(filling: Filling, marlaas: Commander, engine: FakeEngine) -> None:
    filling.task(name="sums", state="done", steps=20, made=20)
    filling.task(state="failed", reason="the environment failed")
    said = marlaas("watch", "1", "--plain")
    assert (said.code, said.err) == (0, "")
    assert (
        said.out
        == "Task 1, physics-lab, sums: done, step 20 of 20, reward 0.63, held-out score 0.58 plus or minus 0.03"
        " (64 prompts).\n"
    )
    said = marlaas("watch", "1", "2", "--quiet")
    assert said.code == 1 and ["✓" in line for line in said.out.splitlines()] == [True, False]
    assert "the environment failed" in said.out
    assert [json.loads(line)["id"] for line in marlaas("watch", "1", "2", "--json").out.splitlines()] == [1, 2]
    assert marlaas("watch", "9").code == 2


def test_without_numbers_it_follows_all_until_ctrl_c(
    filling: Filling, home: Home, engine: FakeEngine, capsys: pytest.CaptureFixture[str]
) -> None:
    filling.task(state="done", made=2)
    filling.task(name="old", state="running", made=2)
    events = iter(
        (
            lambda: filling.execute("UPDATE tasks SET state = 'done' WHERE name = 'old'"),
            lambda: filling.task(name="young", state="queued"),
            lambda: setattr(engine, "living", False),
        )
    )

    def sleep(seconds: float) -> None:
        event = next(events, None)
        if event is None:
            raise KeyboardInterrupt
        event()

    with opened(home) as reader, pytest.raises(KeyboardInterrupt):
        follower = Follower(
            lambda: tasks.moving(follower, reader), lambda: engine.living, print, words=sentence, sleep=sleep
        )
        tasks.watch_all(follower)
    said = capsys.readouterr()
    assert [line.split(":")[1].split(",")[0].strip() for line in said.out.splitlines()] == ["running", "done", "queued"]
    assert said.err.splitlines()[1] == tasks.NO_ENGINE


@pytest.fixture
def named(filling: Filling) -> None:
    """Tasks 1 to 5: one has a name of its own, two share one, one is called like another one's number."""
    for name in ("first run", "again", "again", "1", "last"):
        filling.task(name=name, state="done", made=2)


@pytest.mark.usefixtures("named")
@pytest.mark.parametrize("verb", ["show", "adapters list"])
def test_a_name_does_what_the_number_does(marlaas: Commander, verb: str) -> None:
    by_number, by_name = marlaas(*verb.split(), "1"), marlaas(*verb.split(), "first run")
    assert (by_name.code, by_name.out, by_name.err) == (by_number.code, by_number.out, by_number.err)
    assert by_name.code == 0


@pytest.mark.usefixtures("named")
@pytest.mark.parametrize("verb", ["show", "wait"])
def test_a_name_of_several_tasks_or_of_none_is_refused(marlaas: Commander, verb: str) -> None:
    said = marlaas(verb, "again")
    assert (said.code, said.out) == (2, "")
    assert said.err == "marlaas: Several tasks are named 'again': 2, 3.\n  Give a number: 3 is the newest.\n"
    said = marlaas(verb, "fist run")
    assert said.code == 2 and "There is no task 'fist run'.\n  Did you mean 'first run'?" in said.err


def test_a_paused_task_is_waited_for_by_name(filling: Filling, marlaas: Commander, engine: FakeEngine) -> None:
    filling.task(name="first run", state="paused", reason="paused by you", made=2)
    filling.execute("UPDATE tasks SET reason_code = 'person'")
    said = marlaas("wait", "first run", "--timeout", "0")
    assert said.code == 1 and said.err.count("`marlaas resume 1` goes on with it.") == 1


def test_in_a_pipe_it_is_silent(monkeypatch: pytest.MonkeyPatch) -> None:
    pipe = io.StringIO()
    monkeypatch.setattr(sys, "stderr", pipe)
    with Waiting("Loading guess") as told:
        told.say("One line.")
    assert pipe.getvalue() == "One line.\n"
    with Waiting("Starting a sampler", piped=True):
        assert pipe.getvalue() == "One line.\nStarting a sampler …\n"


TODAY = time.strftime("%Y-%m-%d", time.gmtime())


@pytest.fixture
def obedient(filling: Filling, home: Home, monkeypatch: pytest.MonkeyPatch, engine: FakeEngine) -> FakeEngine:
    """An engine that does at once what a command asks for."""

    def obey(reader: object, sent: list[int]) -> dict[int, str]:
        for *_, arguments in commands_of(home):
            filling.insert("tenants", created=1.0, **{"weight": 1.0, "tasks": 0, "tokens_per_day": 0} | arguments)
        return dict.fromkeys(sent, "")

    monkeypatch.setattr(commands, "wait_for_outcomes", obey)
    return engine


def test_lists_what_tenants_may_take_and_have_taken(filling: Filling, marlaas: Commander) -> None:
    for state in ("running", "queued", "blocked", "submitted", "paused", "done", "failed"):
        filling.task(tenant="bio", state=state, made=10)
    filling.insert("tenants", name="bio", weight=2.5, created=1.0, tasks=2, tokens_per_day=2_000_000)
    filling.insert("tenants", name="not yet here", weight=1.0, created=1.0)
    filling.insert("usage", day=TODAY, task=1, stage="rollout", tokens=12_345, seconds=1.0)
    filling.insert("usage", day="2001-01-01", task=1, stage="rollout", tokens=99, seconds=1.0)
    lines = marlaas("tenants").out.splitlines()
    assert lines[0].split()[:4] == ["TENANT", "WEIGHT", "RUNNING", "WAITING"]
    assert (
        lines[1].split(None, 9)[:9] == ["bio", "2.5", "1", "of", "2", "2", "1", "1", "2"]
        and "12.3k of 2.0M" in lines[1]
    )
    assert lines[2].startswith("not yet here")
    first = marlaas("tenants", "--json").json[0]
    assert (first["tokens_today"], first["waiting"], first["finished"]) == (12_345, 2, 2)


def test_sets_by_asking_the_engine(home: Home, marlaas: Commander, obedient: FakeEngine) -> None:
    obedient.living = False
    said = marlaas("tenants", "set", "bio", "--weight", "2", "--tokens-per-day", "2,000,000")
    assert (said.code, obedient.asked) == (0, ["start"])
    assert commands_of(home) == [("tenant", None, {"name": "bio", "weight": 2, "tokens_per_day": 2_000_000})]
    assert said.err == (
        "New tenant bio: weight 2, tasks at the same time: any number, 2,000,000 tokens a day.\n"
    )  # fmt: skip
    assert marlaas("tenants", "set", "bio", "--tasks", "0").err.startswith("Tenant bio: ")


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (("bio",), "Nothing is to change for tenant 'bio'."),
        (("bio", "--weight", "0"), "The weight of tenant 'bio' cannot be 0; it is a number from 0.001 to 1,000."),
        (("bio", "--tasks", "1.5"), "cannot be 1.5; it is a whole number from 0 to 10,000."),
        (("\x1b[2J", "--tasks", "1"), "A tenant's name must be a printable text"),
        (("bio", "--weight", "much"), "invalid number value: 'much'"),
    ],
)
def test_bad_values_are_one_sentence_and_ask_nobody(
    filling: Filling,
    home: Home,
    marlaas: Commander,
    engine: FakeEngine,
    words: tuple[str, ...],
    sentence: str,
) -> None:
    said = marlaas("tenants", "set", *words)
    assert said.code == 2 and sentence in said.err
    assert commands_of(home) == [] and engine.asked == []
