"""Words about environments: facts, findings, transcripts."""

from __future__ import annotations

import json
import unicodedata
from dataclasses import replace

import pytest
from hypothesis import given, strategies as st

from marlaas.app.text import environments as transcript
from marlaas.app.text.environments import (
    Fact,
    facts,
    failed_share,
    mark,
    spoken,
    takes,
    trouble_words,
    troubles,
    verdict,
)
from marlaas.engine.environments.conformance.finding import Finding, Level
from marlaas.engine.environments.protocol import EpisodeOutcome
from marlaas.engine.store.queries.machine import EnvironmentUse, EpisodeFailure, EpisodeUse
from marlaas.engine.store.rows import EnvironmentRow
from marlaas.engine.trajectories import Failure
from marlaas.plugins.messages import Message, Reply, ToolCall
from marlaas.plugins.parameters import Parameter
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


def test_a_label_stands_once() -> None:
    found = (Finding("baseline", "warning", "42 earns 0.61."), Finding("lengths", "note", "9 tokens."))
    row = EnvironmentRow("shop/buy", "v", "ready", (), "", "", "", 0, "p", NOW, found, NOW - 90)
    checks = [fact for fact in told(row) if fact.level or "done" in fact.text]
    assert [fact.label for fact in checks] == ["checks", "", ""]
    assert [fact.level for fact in checks] == ["warning", "note", ""] and checks[2].text == "done 1 min 30 s ago"


def test_where_nothing_was_played_that_is_said() -> None:
    assert told()[1] == Fact("last hour", "no episode has ended")


def test_processes_are_counted_with_those_who_wait() -> None:
    assert all(fact.label != "processes" for fact in told()), "nothing runs"
    row = replace(ROW, playing=1, live=1)
    assert Fact("processes", "1 process, 1 episode under way") in told(row)
    row = replace(ROW, playing=2, scoring=3, live=1024, waiting=64)
    assert Fact("processes", "2 processes, 1,024 episodes under way, 64 wait for a place, 3 more for scores") in told(
        row
    )


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


def test_few_failures_are_not_none() -> None:
    assert failed_share(EpisodeUse({"ok": 999, "timeout": 1})) == "<1 %"
    assert failed_share(EpisodeUse({"ok": 999})) == failed_share(EpisodeUse()) == "0 %"


def test_times_fit_into_six_cells() -> None:
    assert [takes(seconds) for seconds in (0.0012, 0.46, 9.96, 61.0)] == ["1ms", "460ms", "10.0s", "1m01"]


# How findings read.

SERVING_ROW = EnvironmentRow("a/b", "v1", "ready", (), "", "", "", 0, "", 0.0)


def of(*levels: Level) -> tuple[Finding, ...]:
    return tuple(Finding("baseline", level, "x") for level in levels)


@pytest.mark.parametrize(
    ("levels", "shown", "said"),
    [
        ((), "✓", "nothing wrong"),
        (("note",), "✓", "nothing wrong"),
        (("warning", "note"), "! 1", "1 warning"),
        (("error", "error", "warning"), "✗ 2", "2 errors and 1 warning"),
    ],
)
def test_marks_and_verdicts(levels: tuple[Level, ...], shown: str, said: str) -> None:
    assert mark(replace(SERVING_ROW, findings=of(*levels), checked=1.0)) == shown
    assert verdict(of(*levels)) == said


def test_what_was_not_checked_has_no_mark() -> None:
    assert mark(SERVING_ROW) == ""


def test_a_finding_is_one_safe_line() -> None:
    assert spoken(Finding("baseline", "error", "two\nlines \x1b[2Jand more")) == "✗ baseline    two lines and more"
    assert troubles(of("note", "error")) == list(of("error"))


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

CALL = ToolCall("buy", {"item": "ink", "count": 2})


def buy(item: str, count: int = 1) -> str:
    """Buy something."""
    return item * count


def test_messages_stand_under_who_said_them() -> None:
    assert transcript.message(Message("user", "one\ntwo")) == ["user       one", "           two"]
    assert transcript.message(Message("tool", "7", name="price")) == ["result     price: 7"]
    assert transcript.message(Message("assistant", "so", tool_calls=(CALL,))) == [
        "assistant  so",
        'call       buy(item="ink", count=2)',
    ]


def test_a_policy_s_reply_shows_what_the_environment_gets() -> None:
    assert transcript.reply(Reply("12", "stop", 0)) == ["reply      12"]
    assert transcript.reply(Reply("", "length", 0)) == [
        "reply      (nothing: '')",
        "           (cut off by the length limit)",
    ]
    assert transcript.reply(Reply("", "tool", 0, (CALL,), "hm")) == [
        "thinking   hm",
        'call       buy(item="ink", count=2)',
    ]


def test_tools_read_as_they_are_called() -> None:
    assert transcript.tools([schema_of(buy)]) == ["tool       buy(item: string, count?: integer)  Buy something."]
    choice = {"function": {"name": "go", "parameters": {"properties": {"to": {"enum": ["n", "s"]}}}}}
    assert transcript.tools([choice]) == ['tool       go(to?: "n" | "s")']
    for odd in ({}, {"function": 3}, {"function": {"parameters": {"properties": {"a": 1}, "required": 2}}}):
        assert len(transcript.tools([odd])) == 1


def test_an_ending_says_what_was_earned() -> None:
    ended = EpisodeOutcome(
        "ok", {"first": 1.0, "second": -0.5}, {"style": 0.25}, {"turns": 3.0, "note": "well"}, "no number", seconds=0.4
    )
    assert transcript.outcome(ended) == [
        "The episode ended after 0.4 s.",
        "invalid    no number",
        "reward     first 1, second -0.5",
        "parts      style 0.25",
        "logged     turns 3, note well",
    ]
    assert "reward     1" in transcript.outcome(EpisodeOutcome("ok", {"agent": 1.0}))


def test_a_failure_says_where() -> None:
    failure = Failure("ZeroDivisionError: division by zero", "shop.py", 7, "Traceback\n" * 50 + "the end")
    rows = transcript.outcome(EpisodeOutcome("error", failure=failure))
    assert rows[:2] == [
        "The episode failed after 0 s.",
        "error      shop.py, line 7: ZeroDivisionError: division by zero",
    ]
    assert len(rows) == 2 + transcript.TRACEBACK_LINES and rows[-1].strip() == "the end"


def test_settings_are_those_of_this_game() -> None:
    parameters = (Parameter("digits", "int", 2), Parameter("items", "json", []))
    assert transcript.settings(parameters, {"digits": 3, "items": ["ink"]}) == 'digits = 3, items = ["ink"]'


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


def test_a_failure_without_a_line_names_its_file_alone() -> None:
    assert transcript.failure(Failure("it is a link", "x.py"))[0].split(maxsplit=1) == ["error", "x.py: it is a link"]
