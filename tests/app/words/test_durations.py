"""Spans of time as people type them."""

from __future__ import annotations

from datetime import datetime

import pytest

from marlaas.app.words.durations import moment, seconds
from marlaas.engine.errors import ConfigError


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
