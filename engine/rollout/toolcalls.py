"""Finds tool calls in what a model wrote: Hermes' form, ``<tool_call>{"name": …, "arguments": {…}}</tool_call>``.

What is not exactly that stays text, so that the environment, and the reward, see what was really said. Pure.
"""

from __future__ import annotations

import json
import re
from typing import Any, NoReturn

from ..environments.protocol import ToolCall
from .vocabulary import well_formed

BLOCK = re.compile(r"<tool_call>(.*?)</tool_call>", re.DOTALL)


def split_calls(text: str) -> tuple[str, tuple[ToolCall, ...]]:
    """The text without its well-formed calls, and the calls in order."""
    calls: list[ToolCall] = []

    def take(block: re.Match[str]) -> str:
        call = parse_call(block[1])
        if call is None:
            return block[0]
        calls.append(call)
        return ""

    rest = BLOCK.sub(take, text)
    return (rest.strip() if calls else rest), tuple(calls)


def parse_call(text: str) -> ToolCall | None:
    """The call in a block's JSON, or None if it is malformed in any way."""
    try:
        value = json.loads(text, parse_constant=_refuse)
    except (ValueError, RecursionError):
        return None
    if not isinstance(value, dict):
        return None
    name, arguments = value.get("name"), value.get("arguments", {})
    if not isinstance(name, str) or not name or not isinstance(arguments, dict):
        return None
    return ToolCall(well_formed(name), _clean(arguments))


def _clean(value: Any) -> Any:
    if isinstance(value, str):
        return well_formed(value)
    if isinstance(value, dict):
        return {well_formed(key): _clean(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_clean(item) for item in value]
    return value


def _refuse(constant: str) -> NoReturn:
    """NaN and infinities are no JSON and would break whoever reads it next."""
    raise ValueError(f"{constant} is no JSON.")
