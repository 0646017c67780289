"""Values, tasks, metrics, machines and environments as text; tables and spoken lines."""

from __future__ import annotations

import json
import math
import os
import re
import unicodedata
from datetime import datetime

import psutil
import pytest
from hypothesis import given, strategies as st

from marlaas.app import spoken
from marlaas.app.output import table
from marlaas.app.reading import opened
from marlaas.app.text import environments as transcript, format as f, tasks
from marlaas.app.text.format import cells, moment, seconds
from marlaas.app.text.machine import judge
from marlaas.app.text.metrics import in_order, value_text
from marlaas.app.text.tasks import GLYPHS, blocking, liveness, queue_order, remedy, state_word
from marlaas.app.text.terms import TERMS, paragraphs
from marlaas.engine.environments.protocol import EpisodeOutcome
from marlaas.engine.errors import ConfigError
from marlaas.engine.home.paths import Home
from marlaas.engine.store.rows import EngineRow
from marlaas.engine.trajectories import Failure
from marlaas.plugins.messages import Message, Reply, ToolCall
from tests.app.commanding import Commander
from tests.app.filling import HOSTILE, Filling
from tests.app.rows import task


@pytest.mark.parametrize(
    ("hostile", "safe"),
    [
        ("\x1b[31mred\x1b[0m", "red"),
        ("\x1b]0;title\x07text", "text"),
        ("\x1b]52;c;c2VjcmV0\x1b\\text", "text"),
        ("\x9b2Jtext", "text"),
        ("\x1bctext", "text"),
        ("a\x00b\x07c\x7f", "abc"),
        ("\u202egnp.exe\u202c", "gnp.exe"),
        ("one\r\ntwo\rthree\u2028four", "one\ntwo\nthree\nfour"),
        ("half \ud800 character", "half \ufffd character"),
        ("tab\there", "tab    here"),
        ("[/INST] [b", "[/INST] [b"),
        ("名前 é ✓", "名前 é ✓"),
        ("\x1b]never ends", r"\x1b]never ends"),
        ("\x1bPnever ends\x1b[31m, red", r"\x1bPnever ends, red"),
        ("\x1b]0;title\nnext line\x07", "\\x1b]0;title\nnext line"),
        ("\x1b[31", r"\x1b[31"),
        ("\x1b]" * 50_000, r"\x1b]" * 50_000),
    ],
)
def test_plain(hostile: str, safe: str) -> None:
    assert f.plain(hostile) == safe


@given(st.text(alphabet=st.characters(), max_size=80))
def test_plain_leaves_nothing_that_a_terminal_obeys(text: str) -> None:
    safe = f.plain(text)
    assert all(c == "\n" or unicodedata.category(c) not in ("Cc", "Cs") for c in safe)
    assert f.plain(safe) == safe
    safe.encode()


SEQUENCES = st.sampled_from(
    ["\x1b[31m", "\x1b[2J", "\x1b]0;t\x07", "\x1bP1$r\x1b\\", "\x9b2J", "\x1bc", "\x1b(B"]  # complete ones
)

OPEN = st.sampled_from(["\x1b]", "\x1bP", "\x1bX", "\x1b^", "\x1b_", "\x9d", "\x90", "\u202e", "\u2066", "\x00"])

VISIBLE = st.text(st.characters(categories=["Lo"]), max_size=5)


@given(st.lists(st.tuples(VISIBLE, SEQUENCES | OPEN), max_size=12))
def test_plain_hides_nothing_that_can_be_read(pieces: list[tuple[str, str]]) -> None:
    """Letters stand between sequences of all kinds; none of these has a letter of that kind within it."""
    safe = f.plain("".join(words + sequence for words, sequence in pieces))
    assert [c for c in safe if unicodedata.category(c) == "Lo"] == [c for words, _ in pieces for c in words]
    assert not any(unicodedata.bidirectional(c) in ("RLO", "LRO", "RLE", "LRE", "RLI", "LRI", "FSI") for c in safe)
    assert all(c == "\n" or unicodedata.category(c) not in ("Cc", "Cs") for c in safe)


@given(st.text(), st.integers(0, 40))
def test_a_line_fits_its_width(text: str, width: int) -> None:
    cut = f.line(text, width)
    assert f.cells(cut) <= width and "\n" not in cut


def test_wide_text_is_cut_by_cells() -> None:
    assert f.clip("名前が広い", 6) == "名前…"
    assert f.pad("名前", 6) == "名前  "


@pytest.mark.parametrize(
    ("text", "span"), [("90s", 90), ("30m", 1800), ("2h", 7200), ("2H", 7200), ("1h30m", 5400), ("1d", 86_400)]
)
def test_a_span_is_read(text: str, span: float) -> None:
    assert seconds(text) == span


@pytest.mark.parametrize("text", ["", "2", "h", "-2h", "0s", "2 h", "1.5h", "2h!", "367d", "9999999999s", "²h"])
def test_what_is_none_is_said(text: str) -> None:
    with pytest.raises(ConfigError, match="is no span of time") as refused:
        seconds(text)
    assert "1h30m" in refused.value.hint


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("90m", "2026-11-28 07:00"),
        ("08:30", "2026-11-28 08:30"),
        ("9:00", "2026-11-27 09:00"),
        ("2026-11-20", "2026-11-20 00:00"),
        ("2026-11-20 23:59", "2026-11-20 23:59"),
    ],
)
def test_a_moment_as_people_type_it(text: str, expected: str) -> None:
    now = datetime.fromisoformat("2026-11-28 08:30").timestamp()
    assert moment(text, now) == datetime.fromisoformat(expected).timestamp()


@pytest.mark.parametrize("text", ["yesterday", "", "25:00", "12", "2026-13-01"])
def test_what_is_no_moment(text: str) -> None:
    with pytest.raises(ConfigError, match="is no moment"):
        moment(text, 0.0)


@pytest.mark.parametrize(
    ("state", "age", "exists", "word", "text"),
    [
        ("running", 1.0, True, "alive", "alive 1 s ago"),
        ("starting", 1.0, True, "alive", "starting, alive 1 s ago"),
        ("running", 41.0, True, "silent", "silent 41 s"),
        ("running", 41.0, False, "down", "down, last heard 41 s ago"),
        ("running", 1.0, False, "down", "down, last heard 1 s ago"),
        ("stopped", 7260.0, True, "stopped", "stopped 2 h 01 min ago"),
    ],
)
def test_liveness(monkeypatch: pytest.MonkeyPatch, state: str, age: float, exists: bool, word: str, text: str) -> None:
    monkeypatch.setattr(tasks, "process_exists", lambda pid, heard: exists)
    engine = EngineRow(1, 123, state, 0.0, 10_000.0 - age, "tiny", "")
    found = liveness(engine, 10_000.0)
    assert (found.word, found.text) == (word, text)


def test_a_number_that_another_process_has_is_no_silent_engine() -> None:
    """As after a reboot: the number is taken by what began after the engine was last heard."""
    began = psutil.Process().create_time()
    for heard, word in ((began - 3600, "down"), (began + 1, "silent")):
        engine = EngineRow(1, os.getpid(), "running", heard - 60, heard, "tiny", "")
        assert liveness(engine, heard + 7200).word == word


def test_a_blocked_task_comes_before_all_others(filling: Filling, home: Home) -> None:
    for state in ("done", "submitted", "running", "queued", "failed", "blocked", "paused"):
        filling.task(state=state)
    with opened(home) as reader:
        ordered = [task.state for task in sorted(reader.tasks(), key=queue_order)]
    assert ordered == ["blocked", "running", "paused", "queued", "submitted", "failed", "done"]


def test_the_important_come_first_and_edges_are_hidden() -> None:
    names = ["zeal", "staleness_2", "loss", "reward_min", "reward", "[/m]\x1b[31m", "held-out"]
    assert in_order(names) == ["reward", "held-out", "loss", "[/m]\x1b[31m", "zeal"]


@pytest.mark.parametrize(
    ("name", "value", "text"),
    [
        ("reward", 0.5, "0.50"),
        ("clipped", 0.031, "3 %"),
        ("seconds", 0.41, "0.4 s"),
        ("tokens", 12_345.0, "12.3k"),
        ("loss", -1e-5, "-1.0e-05"),
        ("tokens", math.nan, "nan"),
        ("clipped", math.inf, "inf"),
        ("loss", None, "-"),
        ("length", 43.2519, "43.3"),
        ("length", 431.7, "432"),
        ("sums: length", 3.0, "3"),
        ("length_max", 64.0, "64"),
        ("reward_spread", 0.31279, "0.31"),
        ("entropy", 0.74153, "0.742"),
        ("entropy", 2.74153, "2.74"),
        ("grad_norm", 53.4321, "53.4"),
        ("grad_norm", 534.321, "534"),
        ("gap_mean", 0.00041, "4.1e-04"),
        ("staleness", 0.8333, "0.8"),
        ("epoch", 1.3751, "1.38"),
        ("epoch", 13.751, "13.8"),
        ("staleness_0", 5.0, "5"),
        ("staleness_2", 1.0, "1"),
    ],
)
def test_values(name: str, value: float | None, text: str) -> None:
    assert value_text(name, value) == text


@given(st.floats(0, 1e8), st.floats(0, 1e8))
def test_a_slower_step_is_never_judged_better(one: float, other: float) -> None:
    order = ("fit", "slow", "unfit")
    one, other = sorted((one, other))
    assert order.index(judge(one, 60)[0]) <= order.index(judge(other, 60)[0])


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


@pytest.mark.parametrize(
    ("shown", "heard"),
    [
        ("  held-out     0.41 ± 0.06 at step 0", "held-out: 0.41 plus or minus 0.06 at step 0"),
        ("  reward       0.70  ▄▅▆▄▇█", "reward: 0.70"),
        ("✓ 102 ×7, ✗ 112", "right: 102, 7 times, wrong: 112"),
        ("2 cores · CPU · not measured", "2 cores, CPU, not measured"),
        ("Starting it …", "Starting it ..."),
        ("held-out 0.44 → 1.00", "held-out 0.44 to 1.00"),
        ("state   ● running !", "state: running, learning goes wrong"),
        ("log π²", "log pi squared"),
        ("the file .venv/naïve.py, 1 , 2", "the file .venv/naïve.py, 1, 2"),
        ("a  b\n\n  c ", "a: b\n\nc"),
        ("6 ÷ 2", "6 division sign 2"),
        ("", ""),
    ],
)
def test_signs_and_columns_become_words(shown: str, heard: str) -> None:
    assert spoken.spoken(shown) == heard == spoken.spoken(heard)


@pytest.mark.parametrize("state", GLYPHS)
def test_states_are_their_words(state: str) -> None:
    assert spoken.spoken(state_word(state)) == state


def test_every_value_of_a_row_has_its_heading() -> None:
    headers = ("ID", "TENANT", "STATE", "STEP", "REWARD", "MEMBERS", "REASON")
    row = spoken.row(headers, ("3", "bio", "‖ paused", "12/60", "-", "██▁█", "  by you"))
    assert row == "ID 3: tenant bio; state paused; step 12 of 60; reason by you"
    assert spoken.row(("TASK", "1", "2"), ("state", "✓ done", "")) == "task state: 1: done"
    assert spoken.row(("A",), ("",)) == "" and spoken.row(("KL", "P95"), ("0", "")) == "KL 0"


def test_all_terms_can_be_heard() -> None:
    said = [spoken.fact(label or "means", text) for term in TERMS for label, text in paragraphs(term)]
    assert [text for text in said if re.search(r"[^\w -~]", text)] == []


HEADERS = ("ID", "TENANT", "TASK", "ENVIRONMENT", "STATE", "STEP", "REWARD", "HELD-OUT", "REASON")

RIGHT = ("ID", "STEP", "REWARD", "HELD-OUT")

ROWS = [
    "12|physics-lab|learning_rate=0.0003, rank=16|arithmetic/sums|● running|12/60|0.41|0.52 ± 0.03|More prompts help.",
    "7|bio|plain|facts|✓ done|60/60|1.00|1.00 ± 0.00|",
]


@pytest.mark.parametrize("width", [80, 100, 120, 400])
def test_rewards_and_scores_are_in_sight(width: int) -> None:
    lines = table(HEADERS, [row.split("|") for row in ROWS], RIGHT, width)
    assert all(cells(line) <= width for line in lines)
    for number in ("12/60", "0.41", "0.52 ± 0.03", "1.00 ± 0.00", "running"):
        assert any(number in line for line in lines), number
    assert ("learning_rate=0.0003, rank=16" in lines[1]) == (width == 400)


def test_columns_of_numbers_give_way_last() -> None:
    """Four tasks side by side: each has a column."""
    rows = [("environment", *(f"arithmetic/sums of {number}" for number in range(4)))]
    headers = ("KEY", *(f"{number} policy" for number in range(4)))
    head, line = table(headers, rows, headers[1:], 80)
    assert all(f"{number} policy" in head for number in range(4)) and cells(line) <= 80
    assert table(headers, rows, headers[1:])[1].endswith("arithmetic/sums of 3"), "into a file nothing is cut"


REASON = "sums.py:12: NameError: name 'x' is not defined."


def test_a_blocked_task_says_what_to_do() -> None:
    broken, full = task(1, state="blocked", reason=REASON), task(2, state="blocked", reason="waiting for room")
    assert "E opens the file" in remedy(broken) and "goes on by itself" in remedy(broken)
    assert "E opens" not in remedy(full) and "goes on by itself" in remedy(full)
    assert remedy(task(3)) == blocking(task(3)) == ""
    assert blocking(task(4, state="blocked", reason="")) != ""
