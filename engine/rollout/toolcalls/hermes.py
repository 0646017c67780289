"""Hermes' form, which Qwen has: ``<tool_call>{"name": …, "arguments": {…}}</tool_call>``, anywhere and any number."""

from __future__ import annotations

import re

from marlaas.plugins.messages import ToolCall

from .call import read_call

TAG = "<tool_call>"
_END = "</tool_call>"
MOST_BROKEN = 256
"""Broken tags after which the rest of a reply is text: each costs a search."""
_SPACE = re.compile(r"\s*")


def split_hermes(text: str, tools: bool) -> tuple[str, tuple[ToolCall, ...]]:
    """The text without its well-formed calls, and the calls in order, with tools or without.

    A tag without a complete call is text, and so is everything up to the next tag.
    """
    calls: list[ToolCall] = []
    rest: list[str] = []
    at = looked = broken = 0
    while broken < MOST_BROKEN and (start := text.find(TAG, looked)) >= 0:
        looked = _behind_space(text, start + len(TAG))
        call, end = read_call(text, looked, bare=True)
        end = _behind_space(text, end)
        if call is not None and text.startswith(_END, end):
            calls.append(call)
            rest.append(text[at:start])
            at = looked = end + len(_END)
        else:
            broken += 1
    rest.append(text[at:])
    whole = "".join(rest)
    return (whole.strip() if calls else whole), tuple(calls)


def _behind_space(text: str, at: int) -> int:
    found = _SPACE.match(text, at)
    return found.end() if found else at
