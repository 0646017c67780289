"""An episode as text: readable, whole up to a bound, and never what a plugin would make a terminal do."""

from __future__ import annotations

import unicodedata

from hypothesis import given, strategies as st

from marlaas.app.words.environments import transcript as transcript
from marlaas.engine.environments.protocol import EpisodeOutcome
from marlaas.engine.trajectories import Failure
from marlaas.plugins.messages import Message, Reply, ToolCall
from marlaas.plugins.parameters import Parameter
from marlaas.plugins.tools import schema_of

from ...filling import HOSTILE

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
