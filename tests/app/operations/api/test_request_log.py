"""Requests as the gateway's log has them."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, strategies as st

from marlaas.app.operations.api import Request, requests_in
from marlaas.app.operations.log_files import LogLine, tail
from marlaas.engine.gateway.http.logs import Log
from marlaas.engine.gateway.limits import Limits


def lines(*texts: str) -> list[LogLine]:
    return [LogLine(number, "info", text) for number, text in enumerate(texts)]


def test_what_the_gateway_writes_is_read(tmp_path: Path) -> None:
    log = Log(Limits(log=str(tmp_path / "api.log")))
    for number in range(3):
        line, began = log.begin("/v1/messages")
        line.key, line.model, line.status = "tml-ada-" + "x" * 43, f"17@{number}", 429 if number else 200
        line.error, line.prompt_tokens, line.completion_tokens = "quota_exceeded" if number else "", 11, 7
        log.end(line, began)
    log.close()
    found = requests_in(tail(tmp_path / "api.log", None).lines)
    assert [(one.model, one.status, one.error) for one in found] == [
        ("17@2", 429, "quota_exceeded"),
        ("17@1", 429, "quota_exceeded"),
        ("17@0", 200, ""),
    ]
    first = found[0]
    assert (first.key, first.route, first.tokens) == ("tml-ada-xxxxxx", "/v1/messages", (11, 7))
    assert first.seconds >= 0 and first.when > 1.7e9


@pytest.mark.parametrize("text", ["", "{", "[]", "null", '{"route": "/"}', '{"time": 5, "route": "/"}', "[" * 9999])
def test_what_is_none_of_it_is_left_out(text: str) -> None:
    whole = '{"time": "2026-11-26T12:00:00+00:00", "route": "/"}'
    assert requests_in(lines(text, whole, text)) == (Request("", 1795694400.0, "/", "", 0, "", 0.0, (0, 0)),)


@given(st.lists(st.text() | st.dictionaries(st.text(), st.text()).map(str), max_size=5))
def test_any_text_is_no_error(texts: list[str]) -> None:
    requests_in(lines(*texts))
