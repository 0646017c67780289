"""Each border meets a few changed inputs; make fuzz takes its time for it. What that found stands here, too."""

from __future__ import annotations

import json
import struct
from collections.abc import Callable

import pytest
from hypothesis import HealthCheck, given, settings, strategies as st

from .borders import (
    BINARIES,
    ENVIRONMENT,
    FRAMES,
    META,
    PARAMETER,
    TEXTS,
    Border,
    framed,
    frames,
    gguf,
    gguf_of,
    settings as read_settings,
    state,
    state_file,
    task,
    tool_calls,
)
from .gateway import GATEWAY
from .grammars import SCHEMAS
from .requests import HEAD, REQUESTS, ROOT

EVERY = [
    *(pytest.param(border, id=border.name) for border in (*FRAMES, *TEXTS, *BINARIES)),
    *(pytest.param(border, id=border.name, marks=pytest.mark.processes) for border in GATEWAY),
]


@pytest.mark.parametrize("border", EVERY)
@settings(max_examples=25, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.data())
def test_whatever_comes_in_is_read_or_refused(border: Border, data: st.DataObject) -> None:
    border.meet(data.draw(border.inputs()))


@pytest.mark.parametrize("border", EVERY)
def test_what_is_right_is_no_fault(border: Border) -> None:
    for sample in border.samples:
        border.meet(sample)


def nested(depth: int) -> str:
    return "[" * depth + "]" * depth


def call(arguments: str) -> bytes:
    return f'<tool_call>{{"name": "f", "arguments": {arguments}}}</tool_call>'.encode()


DEEP = PARAMETER | {"type": "json", "default": json.loads(nested(490)), "choices": []}
FOUND = [
    (tool_calls, call(f'{{"x": {nested(700)}}}')),
    (tool_calls, call('{"x": 1e999}')),
    (tool_calls, b"<tool_call>" * 100_000),
    (read_settings, f"x = {nested(3000)}".encode()),
    (read_settings, b"x = " + b"9" * 5000),
    (task, b"[[" + b"A" * 70_000 + b"]]"),
    (read_settings, b'[resources]\nactive_hours = "' + b"A" * 70_000 + b'"'),
    (read_settings, b'[resources]\ngpus = "' + b"A" * 70_000 + b'"'),
    (state_file, state(META.replace('"rank": 2', '"rank": "x"'))),
    (state_file, state(META.replace("4.0", "NaN"))),
    (state_file, state(nested(100_000))),
    (state_file, state(META, "BF16", 16)),
    (state_file, state(META, "F8_E4M3", 8)),
    (gguf, gguf_of({b"general.alignment": struct.pack("<II", 4, 0)})),
    (gguf, gguf_of({b"general.alignment": struct.pack("<If", 6, float("inf"))})),
    (gguf, gguf_of({b"x": struct.pack("<I", 9) + struct.pack("<IQ", 9, 1) * 3000})),
    (gguf, gguf_of({}, axes=50_000)),
    (gguf, gguf_of({}, axes=0)),
    (read_settings, b".".join([b"a"] * 100_000) + b" = 1"),
    (task, b"environment_config = " + b"{a = " * 200 + b"1" + b"}" * 200),
    (frames, framed({"op": "hello", "environments": [ENVIRONMENT | {"parameters": [DEEP]}]})),
]
"""What the borders did not stand once: by an error of Python's, by taking minutes, or by a sentence without an end."""


@pytest.mark.parametrize(("check", "data"), FOUND)
def test_what_was_found_stays_mended(check: Callable[[bytes], object], data: bytes) -> None:
    Border("found", [], [], check).meet(data)


@pytest.mark.processes
def test_a_server_answers_whatever_is_asked() -> None:
    (border,) = REQUESTS
    for sample in (
        *border.samples,
        b"GET " + ROOT + b"static/" + b"c/" * 4000 + b" HTTP/1.1\r\n" + HEAD + b"\r\n",
        b"GET /\n\r\n",
    ):
        border.meet(sample)


@pytest.mark.processes
@settings(max_examples=50, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.data())
def test_any_schema_is_followed_or_refused(data: st.DataObject) -> None:
    SCHEMAS[0].meet(data.draw(SCHEMAS[0].inputs()))
