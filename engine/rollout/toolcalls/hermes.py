"""Hermes' form, which Qwen has: ``<tool_call>{"name": …, "arguments": {…}}</tool_call>``, anywhere and any number."""

from __future__ import annotations

from marlaas.plugins.messages import ToolCall

from .call import read_call

TAG = "<tool_call>"
_END = "</tool_call>"


def split_hermes(text: str, tools: bool) -> tuple[str, tuple[ToolCall, ...]]:
    """The text without its well-formed calls, and the calls in order; the tags say enough, with tools or without."""
    calls: list[ToolCall] = []
    rest: list[str] = []
    at = 0
    while (start := text.find(TAG, at)) >= 0 and (end := text.find(_END, start)) >= 0:
        stop = end + len(_END)
        call = read_call(text[start + len(TAG) : end], "arguments")
        rest.append(text[at:stop] if call is None else text[at:start])
        calls += [call] if call is not None else []
        at = stop
    rest.append(text[at:])
    whole = "".join(rest)
    return (whole.strip() if calls else whole), tuple(calls)
