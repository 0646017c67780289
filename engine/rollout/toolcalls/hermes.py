"""Hermes' form, which Qwen has: ``<tool_call>{"name": …, "arguments": {…}}</tool_call>``, anywhere and any number."""

from __future__ import annotations

import re

from ...environments.protocol import ToolCall
from .call import read_call

TAG = "<tool_call>"
_BLOCK = re.compile(r"<tool_call>(.*?)</tool_call>", re.DOTALL)


def split(text: str, tools: bool) -> tuple[str, tuple[ToolCall, ...]]:
    """The text without its well-formed calls, and the calls in order; the tags say enough, with tools or without."""
    calls: list[ToolCall] = []

    def take(block: re.Match[str]) -> str:
        call = read_call(block[1], "arguments")
        if call is None:
            return block[0]
        calls.append(call)
        return ""

    rest = _BLOCK.sub(take, text)
    return (rest.strip() if calls else rest), tuple(calls)
