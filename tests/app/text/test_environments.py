"""Words about environments: facts, findings, transcripts."""

from __future__ import annotations

import json
import unicodedata
from dataclasses import replace

from hypothesis import given, strategies as st

from marlaas.app.text import environments as transcript
from marlaas.app.text.environments import (
    Fact,
    facts,
    trouble_words,
)
from marlaas.engine.environments.conformance.finding import Finding, Level
from marlaas.engine.environments.protocol import EpisodeOutcome
from marlaas.engine.store.queries.machine import EnvironmentUse, EpisodeFailure, EpisodeUse
from marlaas.engine.store.rows import EnvironmentRow
from marlaas.engine.trajectories import Failure
from marlaas.plugins.messages import Message, Reply, ToolCall
from marlaas.plugins.tools import schema_of

from ..commanding import Commander
from ..filling import HOSTILE, Filling

# What is said of an environment, on the screen as on the command line.

NOTHING = EnvironmentUse()
NOW = 1_800_000_000.0
ROW = EnvironmentRow("shop/buy", "9f2c41aa", "ready", (), "A shop.", "", "", 0, "/p/shop.py", NOW)


def told(row: EnvironmentRow = ROW, use: EnvironmentUse = NOTHING) -> list[Fact]:
    return list(facts(row, use, NOW))


def test_what_is_wrong_comes_with_its_place_and_before_the_rest() -> None:
    row = EnvironmentRow("shop/buy", "9f2c41aa", "stale", (), "", "NameError: x", "shop.py", 7, "/p/shop.py", NOW)
    state, error, *_ = told(row)
    assert state.text == "stale: an older version serves; the newest edit does not load"
    assert error == Fact("error", "shop.py:7: NameError: x", "error")


def test_the_line_of_code_stands_below_what_is_wrong_with_it() -> None:
    row = replace(ROW, state="broken", message="NameError: x", file="shop.py", line=7)
    use = EnvironmentUse({"error": 3}, failure=EpisodeFailure("KeyError: 'x'", "goods.py", 31, "v2", NOW))
    lines = {("shop.py", 7): "price = x\x1b[2J", ("goods.py", 31): "return goods['x']"}
    found = list(facts(row, use, NOW, lines))
    code = [place for place, fact in enumerate(found) if fact.level == "code"]
    assert [found[place].text for place in code] == ["7 │ price = x", "31 │ return goods['x']"]
    assert ["NameError" in found[code[0] - 1].text, "KeyError" in found[code[1] - 1].text] == [True, True]
    assert trouble_words(row, use) == "shop.py:7: NameError: x"
    assert trouble_words(ROW, use) == "goods.py:31: KeyError: 'x'" and trouble_words(ROW, NOTHING) == ""


def test_what_the_checks_found_is_wrong_where_episodes_end_well() -> None:
    found = (Finding("lengths", "note", "9 tokens."), Finding("instances", "error", "It never calls\x1b[2J `ep.ask`."))
    row = replace(ROW, findings=found, checked=NOW)
    assert trouble_words(row, NOTHING) == "It never calls `ep.ask`."
    assert trouble_words(replace(row, message="NameError: x"), NOTHING) == "NameError: x"
    assert trouble_words(replace(ROW, findings=(Finding("leaks", "warning", "x"),)), NOTHING) == ""


def test_episodes_of_two_versions_and_the_last_error() -> None:
    old, new = EpisodeUse({"ok": 1200}, 0.4, 2.1), EpisodeUse({"error": 300}, 0.0, 0.0)
    broken = EpisodeFailure("KeyError: 'x'\x1b[2J", "shop.py", 31, "v2", NOW - 42)
    use = EnvironmentUse({"ok": 1200, "error": 300}, 0.4, 2.1, {"v1": old, "v2": new}, broken)
    assert [fact.text for fact in told(use=use)[1:5]] == [
        "1,500 episodes, 20 % failed (300 error, 1,200 ok); median 400ms, p95 2.1s",
        "version v1: 1,200 episodes, 0 % failed (1,200 ok); median 400ms, p95 2.1s",
        "version v2: 300 episodes, 100 % failed (300 error)",
        "last error, version v2, 42 s ago: shop.py:31: KeyError: 'x'",
    ]


# How findings read.


def of(*levels: Level) -> tuple[Finding, ...]:
    return tuple(Finding("baseline", level, "x") for level in levels)


def test_findings_of_the_serving_version_are_listed(filling: Filling, marlaas: Commander) -> None:
    for name, version in (("sums", "9f2c41aa"), ("old", "another")):
        filling.environment(name)
        found = [{"check": "baseline", "level": level, "message": f"{level} \x1b[2J"} for level in ("error", "note")]
        filling.insert(
            "conformance", environment=name, version=version, base="", findings=json.dumps(found), created=filling.now
        )
    said = marlaas("env", "list")
    old, sums = said.out.splitlines()[1:]
    assert "✗ 1" in sums and "✗" not in old
    assert "sums: ✗ baseline    error\n" in said.err and "note" not in said.err and "\x1b" not in said.err
    assert [len(row["findings"]) for row in marlaas("env", "list", "--json").json] == [0, 2]


# An episode as text: readable, whole up to a bound, and never what a plugin would make a terminal do.


def buy(item: str, count: int = 1) -> str:
    """Buy something."""
    return item * count


def test_tools_read_as_they_are_called() -> None:
    assert transcript.tools([schema_of(buy)]) == ["tool       buy(item: string, count?: integer)  Buy something."]
    choice = {"function": {"name": "go", "parameters": {"properties": {"to": {"enum": ["n", "s"]}}}}}
    assert transcript.tools([choice]) == ['tool       go(to?: "n" | "s")']
    for odd in ({}, {"function": 3}, {"function": {"parameters": {"properties": {"a": 1}, "required": 2}}}):
        assert len(transcript.tools([odd])) == 1


def test_a_flood_is_cut() -> None:
    rows = transcript.message(Message("user", "\n".join("x" * 50 for _ in range(100_000))))
    assert len(rows) == transcript.LINES + 1 and "more characters" in rows[-1]


@given(st.text() | st.just(HOSTILE))
def test_no_text_moves_the_terminal_or_forges_a_label(text: str) -> None:
    call = ToolCall(text, {text: text})
    schema = {"function": {"name": text, "description": text, "parameters": {"properties": {text: {"type": text}}}}}
    shown = [
        transcript.message(Message("user", text, tool_calls=(call,))),
        transcript.message(Message("tool", text, name=text)),
        transcript.reply(Reply(text, "length", 0, (call,), text)),
        transcript.tools([schema]),
        transcript.outcome(EpisodeOutcome("ok", {text: 1.0, "b": 2.0}, {text: 1.0}, {text: text}, text)),
        transcript.failure(Failure(text, text, 1, text)),
    ]
    labels = {"user", "result", "call", "reply", "thinking", "tool", "reward", "parts", "logged", "invalid", "error"}
    for rows in shown:
        for row in rows:
            assert all(unicodedata.category(c) not in ("Cc", "Cs") for c in row) and "\u202e" not in row
            assert row[:1] in ("", " ") or row.split(" ")[0] in labels or row.startswith("The episode"), row
