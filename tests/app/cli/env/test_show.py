"""``env list NAME``, ``show``, ``log`` and ``reload``: the whole of what is known, and a sentence where nothing is."""

from __future__ import annotations

import json
import time
import unicodedata
from typing import Any

import pytest

from marlaas.app.operations import commands
from marlaas.engine.environments.process.launch import Folders
from marlaas.engine.home.paths import Home

from ...commanding import Commander, FakeEngine
from ...filling import HOSTILE, Filling

PARAMETERS: list[dict[str, Any]] = [
    {"name": "digits", "type": "int", "default": 2, "required": False, "low": 1, "high": 9, "choices": []},
    {"name": "level", "type": "str", "default": "easy", "required": False, "choices": ["easy", "hard"]},
    {"name": "words", "type": "json", "default": None, "required": True},
]


@pytest.fixture
def filled(filling: Filling) -> Filling:
    """Two plugins; one of them with two environments, one of these broken."""
    for name, state, message in (
        ("games/guess", "ready", ""),
        ("games/nim", "stale", "SyntaxError: invalid syntax"),
        ("arithmetic/arithmetic", "ready", ""),
    ):
        filling.environment(name, state, message)
    filling.execute("UPDATE environments SET parameters = ?", json.dumps(PARAMETERS))
    return filling


def test_a_list_can_be_narrowed(filled: Filling, marlaas: Commander) -> None:
    said = marlaas("env", "list", "GUESS")
    assert said.code == 0 and "digits=2 (1..9)" in said.out
    assert [row.split()[0] for row in said.out.splitlines()] == ["NAME", "games/guess"]
    assert [row["name"] for row in marlaas("env", "list", "games", "--json").json] == ["games/guess", "games/nim"]
    missed = marlaas("env", "list", "gess")
    assert missed.code == 2 and "Did you mean 'guess'?" in missed.err


def test_the_agents_that_it_declares_are_shown_made_safe(filled: Filling, marlaas: Commander) -> None:
    hostile = ["first", "\x1b[2J[bold]x\n", "../../etc", "x" * 10_000]
    filled.execute("UPDATE environments SET agents = ? WHERE name = 'games/guess'", json.dumps(hostile))
    said = marlaas("env", "show", "guess")
    (row,) = [row for row in said.out.splitlines() if row.startswith("  agents")]
    assert row.split()[1] == "first," and "[bold]x" in row and row.isprintable() and len(row) < 700
    assert "  agents" not in marlaas("env", "show", "arithmetic").out
    assert marlaas("env", "show", "guess", "--json").json[0]["agents"] == hostile


def test_the_last_hour_is_told_alike(filled: Filling, marlaas: Commander) -> None:
    played = {"environment": "games/guess", "version": "9f2c41aa", "bucket": -4}
    for status, count in (("ok", 1990), ("error", 10)):
        filled.insert("outcomes", begun=int(time.time()), status=status, episodes=count, **played)
    failed = {"environment": "games/guess", "version": "9f2c41aa", "message": "KeyError: 'x'", "file": "guess.py"}
    filled.insert("failures", line=31, created=time.time(), **failed)
    listed = marlaas("env", "list", "guess")
    assert "2,000     <1 %    545ms" in listed.out and "of the last hour" in listed.err
    shown = marlaas("env", "show", "guess").out
    assert "2,000 episodes, <1 % failed (10 error, 1,990 ok); median 545ms" in shown
    assert "guess.py:31: KeyError: 'x'" in shown
    for verb in ("list", "show"):
        (row,) = marlaas("env", verb, "games/guess", "--json").json
        lately = row["last_hour"]
        assert (lately["episodes"], lately["failed"], lately["failure"]["line"]) == (2000, 0.005, 31)


def test_show_prints_all_that_is_known(home: Home, filled: Filling, marlaas: Commander) -> None:
    log = Folders.of(home.scratch, "games").log
    log.parent.mkdir(parents=True)
    log.write_text("".join(f"line {n}\n" for n in range(100)))
    said = marlaas("env", "show", "nim")
    assert said.code == 0
    for words in (
        "games/nim: Sums of whole numbers.",
        "stale: an older version serves",
        "arithmetic.py:7: SyntaxError: invalid syntax",
        "digits: int, 1..9, default 2",
        "words: json, required",
        "line 99",
    ):
        assert words in said.out
    assert "line 94" not in said.out
    assert [row["name"] for row in marlaas("env", "show", "games", "--json").json] == ["games/guess", "games/nim"]
    assert marlaas("env", "log", "guess", "-n", "2").out == "line 98\nline 99\n"
    assert "has printed nothing" in marlaas("env", "log", "arithmetic").err


def test_a_print_storm_does_not_fill_the_screen(home: Home, filled: Filling, marlaas: Commander) -> None:
    log = Folders.of(home.scratch, "games").log
    log.parent.mkdir(parents=True)
    log.write_text(("storm " * 1000 + "\n") * 10)
    shown = marlaas("env", "show", "nim").out.splitlines()[-5:]
    assert all(row.startswith("    storm") and row.endswith("…") and len(row) < 200 for row in shown)


@pytest.mark.parametrize("verb", ["show", "log", "reload"])
def test_unknown_names_give_the_nearest(filled: Filling, marlaas: Commander, engine: FakeEngine, verb: str) -> None:
    said = marlaas("env", verb, "arithmetik")
    assert said.code == 2 and "Did you mean 'arithmetic'?" in said.err


@pytest.mark.parametrize("verb", ["show", "log"])
def test_an_empty_home_says_what_to_do(home: Home, marlaas: Commander, verb: str) -> None:
    assert "`marlaas engine start` starts one" in marlaas("env", verb, "guess").err


@pytest.mark.parametrize("verb", ["show", "log"])
def test_hostile_text_is_text(home: Home, filling: Filling, marlaas: Commander, verb: str) -> None:
    filling.environment("evil/evil", "broken", HOSTILE.replace("\ud800", ""))
    filling.execute("UPDATE environments SET description = ?", "a\x1b[31m\nb\x1b]0;owned\x07")
    log = Folders.of(home.scratch, "evil").log
    log.parent.mkdir(parents=True)
    log.write_bytes(b"\x1b[2Jgone\xff\x00\n\x9b31m")
    said = marlaas("env", verb, "evil")
    assert said.code == 0 and "gone" in said.out
    assert all(c == "\n" or unicodedata.category(c) not in ("Cc", "Cs") for c in said.out + said.err)


def test_reload_asks_the_engine(
    filled: Filling, marlaas: Commander, engine: FakeEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    answers = iter([{1: ""}, {2: "games.py:3: NameError."}, {}])
    monkeypatch.setattr(commands, "wait_for_outcomes", lambda reader, sent: next(answers))
    assert marlaas("env", "reload", "nim").err == "The plugin games was read again; it serves.\n"
    assert "games.py:3" in marlaas("env", "reload", "games").err
    assert marlaas("env", "reload", "games").code == 3
    engine.living = False
    assert "No engine serves" in marlaas("env", "reload", "games").err
