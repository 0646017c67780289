"""tenants: who uses the home, and what is asked of the engine to change that."""

from __future__ import annotations

import json
import sqlite3
import time
from contextlib import closing
from pathlib import Path

import pytest

from marlaas.app.operations import commands

from ..commanding import Commander, FakeEngine
from ..filling import HOSTILE, Filling

TODAY = time.strftime("%Y-%m-%d", time.gmtime())


def asked(filling: Filling) -> list[tuple[str, dict[str, object]]]:
    with closing(sqlite3.connect(filling.path)) as connection:
        rows = connection.execute("SELECT kind, arguments FROM commands ORDER BY id").fetchall()
    return [(kind, json.loads(arguments)) for kind, arguments in rows]


@pytest.fixture
def obedient(filling: Filling, monkeypatch: pytest.MonkeyPatch, engine: FakeEngine) -> FakeEngine:
    """An engine that does at once what a command asks for."""

    def obey(reader: object, sent: list[int]) -> dict[int, str]:
        for _, arguments in asked(filling):
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
    assert lines[0].split() == [
        "TENANT",
        "WEIGHT",
        "RUNNING",
        "WAITING",
        "BLOCKED",
        "PAUSED",
        "FINISHED",
        "TOKENS",
        "TODAY",
        "TIME",
    ]
    assert (
        lines[1].split(None, 9)[:9] == ["bio", "2.5", "1", "of", "2", "2", "1", "1", "2"]
        and "12.3k of 2.0M" in lines[1]
    )
    assert lines[2].startswith("not yet here")
    first = marlaas("tenants", "--json").json[0]
    assert (first["tokens_today"], first["waiting"], first["finished"]) == (12_345, 2, 2)


def test_hostile_names_are_harmless(filling: Filling, marlaas: Commander) -> None:
    filling.task(tenant=HOSTILE)
    assert "\x1b" not in marlaas("tenants").out and marlaas("tenants", "--json").json


def test_an_empty_home_says_what_to_do(marlaas: Commander) -> None:
    said = marlaas("tenants")
    assert said.code == 0 and "marlaas tenants set" in said.err
    assert marlaas("tenants", "--json").json == []


def test_sets_by_asking_the_engine(filling: Filling, marlaas: Commander, obedient: FakeEngine) -> None:
    obedient.living = False
    said = marlaas("tenants", "set", "bio", "--weight", "2", "--tokens-per-day", "2,000,000")
    assert (said.code, obedient.asked) == (0, ["start"])
    assert asked(filling) == [("tenant", {"name": "bio", "weight": 2, "tokens_per_day": 2_000_000})]
    assert said.err == (
        "New tenant bio: weight 2, tasks at the same time: any number, 2,000,000 tokens a day.\n"
    )  # fmt: skip
    assert marlaas("tenants", "set", "bio", "--tasks", "0").err.startswith("Tenant bio: ")


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (("bio",), "Nothing is to change for tenant 'bio'."),
        (("bio", "--weight", "0"), "The weight of tenant 'bio' cannot be 0; it is a number from 0.001 to 1,000."),
        (("bio", "--weight", "nan"), "cannot be nan"),
        (("bio", "--tasks", "1.5"), "cannot be 1.5; it is a whole number from 0 to 10,000."),
        (("bio", "--tasks", "-1"), "cannot be -1"),
        (("\x1b[2J", "--tasks", "1"), "A tenant's name must be a printable text"),
        (("bio", "--weight", "much"), "invalid number value: 'much'"),
    ],
)
def test_bad_values_are_one_sentence_and_ask_nobody(
    filling: Filling, marlaas: Commander, engine: FakeEngine, words: tuple[str, ...], sentence: str
) -> None:
    said = marlaas("tenants", "set", *words)
    assert said.code == 2 and sentence in said.err
    assert asked(filling) == [] and engine.asked == []


def test_a_silent_engine_is_said_to_be_silent(
    filling: Filling, marlaas: Commander, engine: FakeEngine, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(commands, "wait_for_outcomes", lambda reader, sent: {})
    said = marlaas("tenants", "set", "bio", "--tasks", "1")
    assert said.code == 3 and "has not answered" in said.err
