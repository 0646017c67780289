"""Spans of time as people type them."""

from __future__ import annotations

import pytest

from marlaas.app.words.durations import seconds
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
