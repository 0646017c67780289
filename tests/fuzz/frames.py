"""The border at which plugins' processes speak: frames on a socket."""

from __future__ import annotations

import asyncio
import dataclasses
import json
import struct

import msgspec

from marlaas.engine.environments.process.wire import Hello, Received, WireError, decode_body, parse_message
from marlaas.plugins.host.channel import Channel, Record
from marlaas.plugins.messages import MOST_VALUES
from marlaas.plugins.parameters import complete

from .border import Border

PARAMETER: Record = {
    "name": "n",
    "type": "int",
    "default": 1,
    "required": False,
    "low": 0,
    "high": 9.5,
    "choices": [1, 2],
}
ENVIRONMENT: Record = {"name": "e", "timeout": 60, "description": "d", "parameters": [PARAMETER], "agents": ["a"]}
_FAILURE = {"message": "m", "file": "f.py", "line": 3, "traceback": "t"}
_CALL = {"name": "f", "arguments": {"x": [1, {"y": None}]}}
_RECORDS: list[Record] = [
    {"op": "hello", "environments": [ENVIRONMENT]},
    {"op": "hello", "environments": [ENVIRONMENT], "refused": [{"name": "b", "failure": _FAILURE}]},
    {"op": "broken", "failure": _FAILURE},
    {
        "op": "ask",
        "id": 1,
        "episode": 2,
        "agent": "a",
        "messages": [
            {"role": "user", "content": "é\ud800"},
            {"role": "assistant", "content": "", "tool_calls": [_CALL]},
        ],
        "tools": [{"type": "function"}],
        "max_tokens": 5,
        "stop": ["x"],
        "branch": 1,
        "fork": {"agent": "a", "branch": 0, "turns": 1},
    },
    {"op": "end", "episode": 2, "status": "ok", "rewards": {"a": 1.5}, "parts": {"p": 1}, "metrics": {"m": "x"}},
    {"op": "end", "episode": 2, "status": "played", "task": {"row": [1, "x"]}, "paid": [{"agent": "a", "turns": 1}]},
    {"op": "end", "episode": 2, "status": "error", "failure": _FAILURE, "seconds": 0.5},
    {"op": "ranked", "episode": 2, "rewards": [{"a": 1}, {"a": 0.5}]},
    {"op": "ready"},
    {"op": "loaded", "episode": 2, "left": True},
]


def framed(record: Record) -> bytes:
    """As a plugin's process sends it."""
    body = json.dumps(record).encode()
    return struct.pack("<I", len(body)) + body


def frames(data: bytes) -> None:
    """Messages of ours, or ``WireError``; their length is given to what lacks one."""
    asyncio.run(_receive(data))
    asyncio.run(_receive(struct.pack("<I", len(data[4:])) + data[4:]))


async def _receive(data: bytes) -> None:
    def heard(record: Record) -> None:
        try:
            received = parse_message(record, clean=True)
        except WireError as error:
            assert len(str(error)) < 1000
            return
        _usable(received)

    Channel(heard, lambda reason: None, 3 * MOST_VALUES, 1 << 25, decode_body).data_received(data)


def _usable(received: Received) -> None:
    """The engine copies it, keeps it as JSON, and fills in parameters."""
    json.dumps(dataclasses.asdict(received) if dataclasses.is_dataclass(received) else msgspec.to_builtins(received))
    if isinstance(received, Hello):
        for found in received.environments:
            try:
                complete(found.parameters, {}, found.name)
            except ValueError as error:
                assert str(error)


_WORDS = [
    b'"op"',
    b'"hello"',
    b'"ask"',
    b'"end"',
    b'"default":',
    b'"tools":',
    b"[]",
    b"{}",
    b'"',
    b",",
    b":",
    b"[[[[",
    b"null",
]

FRAMES = (Border("frames", [framed(record) for record in _RECORDS], _WORDS, frames),)
