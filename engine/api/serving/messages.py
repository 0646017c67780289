"""A client's messages and tools as the base's template takes them, and the calls that a model wrote as clients do.

Everything here comes from outside: each mistake is a ``Refusal`` that says what is wrong.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Iterable, Sequence
from typing import Any

from marlaas.plugins.messages import Message, ToolCall, within_limits

from ...gateway import Refusal
from ...gateway.wire import Message as Sent, ToolCall as Call
from ...rollout import schema_of_call

ROLES = {"system": "system", "developer": "system", "user": "user", "assistant": "assistant", "tool": "tool"}
LONGEST_NAME = 128
"""Characters of a tool's name."""


def messages(sent: Sequence[Sent], thinks: bool) -> tuple[Message, ...]:
    """The conversation. ``thinks``: whether the base's template knows thoughts, which are left out else."""
    if not sent:
        raise refused("The conversation has no messages.", "messages")
    names = {call.id: call.name for message in sent for call in message.tool_calls}
    return tuple(_message(message, names, thinks) for message in sent)


def tools(sent: Sequence[dict[str, Any]]) -> tuple[dict[str, Any], ...]:
    """The tools, if they have OpenAI's form."""
    for number, tool in enumerate(sent):
        function = tool.get("function") if isinstance(tool, dict) else None
        if not isinstance(function, dict) or tool.get("type", "function") != "function":
            raise refused(f"Tool {number} is no function: only those can be called here.", "tools")
        name = function.get("name")
        if not isinstance(name, str) or not 0 < len(name) <= LONGEST_NAME:
            raise refused(f"Tool {number} has no name of 1 to {LONGEST_NAME} characters.", "tools")
    try:
        within_limits(list(sent), "The tools")
    except ValueError as error:
        raise refused(str(error), "tools") from None
    return tuple(sent)


def calls(made: Iterable[ToolCall]) -> tuple[Call, ...]:
    """What the model called, each under an id of its own."""
    return tuple(Call(f"call_{secrets.token_hex(12)}", one.name, json.dumps(one.arguments)) for one in made)


def forced(wish: str, sent: Sequence[dict[str, Any]]) -> str:
    """The JSON schema of a call that ``wish`` forces; else empty."""
    try:
        return schema_of_call(wish, sent)
    except ValueError as error:
        raise refused(str(error), "tool_choice") from None


def refused(message: str, where: str, code: str = "invalid_request") -> Refusal:
    """What to raise for a request that cannot be."""
    return Refusal(400, code, message, where)


def _message(sent: Sent, names: dict[str, str], thinks: bool) -> Message:
    role = ROLES.get(sent.role)
    if role is None:
        raise refused(f"A message has the role {sent.role[:LONGEST_NAME]!r}; known are {', '.join(ROLES)}.", "messages")
    if role == "tool":
        return Message(role, sent.content, sent.name or names.get(sent.tool_call_id, ""))
    if role != "assistant":
        return Message(role, sent.content, sent.name)
    thought = f"<think>\n{sent.thinking}\n</think>\n\n" if thinks and sent.thinking else ""
    return Message(role, thought + sent.content, sent.name, tuple(map(_call, sent.tool_calls)))


def _call(sent: Call) -> ToolCall:
    try:
        arguments = json.loads(sent.arguments or "{}")
        within_limits(arguments, "A call")
    except (ValueError, RecursionError):
        arguments = None
    if not isinstance(arguments, dict):
        raise refused(f"The arguments of the call {sent.id[:LONGEST_NAME]!r} are no JSON object.", "messages")
    return ToolCall(sent.name, arguments)
