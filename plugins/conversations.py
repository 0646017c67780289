"""Conversations as files of examples hold them, in the forms that fine-tuning services and libraries read.

- ``{"messages": [{"role": "user", "content": "…"}, …], "tools": […]}``, as OpenAI and TRL have it;
- ``{"prompt": …, "completion": …}``: each a text or a list of such messages (TRL);
- ``{"conversations": [{"from": "human", "value": "…"}, …], "system": "…"}`` (ShareGPT).
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from .messages import Message, ToolCall

FORMS = '"messages", "prompt" and "completion", or "conversations"'
_ROLES = {
    "human": "user",
    "gpt": "assistant",
    "chatgpt": "assistant",
    "bot": "assistant",
    "model": "assistant",
    "developer": "system",
    "function": "tool",
    "observation": "tool",
}
"""Other names of roles."""


def conversation_of(row: object) -> tuple[tuple[Message, ...], tuple[dict[str, Any], ...]]:
    """The messages and tools of a row, or of a list of messages.

    Raises ``ValueError``, in words for the author of the file, for another form, and for a conversation that does not
    end with a reply of the assistant.
    """
    tools: Any = ()
    if isinstance(row, Mapping):
        tools = _parsed(row.get("tools") or (), "tools")
        listed = _listed(row)
    else:
        listed = row
    if not isinstance(listed, Sequence) or isinstance(listed, str) or not listed:
        raise ValueError(f"a conversation is a list of messages, not {listed!r:.60}")
    messages = tuple(_message(message, number) for number, message in enumerate(listed))
    if not isinstance(tools, list | tuple) or not all(isinstance(tool, dict) for tool in tools):
        raise ValueError(f'"tools" is a list of JSON schemas, not {tools!r:.60}')
    if messages[-1].role != "assistant":
        raise ValueError(f"a conversation ends with a reply of the assistant, not with one of {messages[-1].role!r}")
    return messages, tuple(tools)


def pair_of(row: object) -> tuple[dict[str, Any], dict[str, Any]]:
    """The chosen and the rejected conversation of a row, each as ``conversation_of`` reads them.

    ``{"prompt": …, "chosen": …, "rejected": …}``, each a text or a list of messages, as TRL has them; without
    ``prompt`` both are whole conversations. Raises ``ValueError`` as ``conversation_of`` does.
    """
    if not isinstance(row, Mapping) or not {"chosen", "rejected"} <= row.keys():
        names = ", ".join(map(repr, row)) if isinstance(row, Mapping) else repr(row)[:60]
        raise ValueError(f'a row has "chosen" and "rejected", and mostly "prompt", not {names or "nothing"}')
    before = _said(row.get("prompt") or [], "user")
    tools = {"tools": row["tools"]} if row.get("tools") else {}
    chosen, rejected = (
        {"messages": [*before, *_said(row[name], "assistant")]} | tools for name in ("chosen", "rejected")
    )
    for conversation in (chosen, rejected):
        conversation_of(conversation)
    return chosen, rejected


def _listed(row: Mapping[str, Any]) -> Any:
    if "messages" in row:
        return row["messages"]
    if "completion" in row and "prompt" in row:
        return [*_said(row["prompt"], "user"), *_said(row["completion"], "assistant")]
    if "conversations" in row:
        system = row.get("system")
        return [*_said(system or [], "system"), *_said(row["conversations"], "user")]
    raise ValueError(f"a row has {FORMS}, not {', '.join(map(repr, row)) or 'nothing'}")


def _said(value: Any, role: str) -> Sequence[Any]:
    if not isinstance(value, str | list | tuple):
        raise ValueError(f"what is said is a text or a list of messages, not {value!r:.60}")
    return [{"role": role, "content": value}] if isinstance(value, str) else value


def _message(record: Any, number: int) -> Message:
    if isinstance(record, Message):
        return record
    where = f"message {number + 1}"
    if not isinstance(record, Mapping):
        raise ValueError(f"{where} is {record!r:.40}, not an object with role and content")
    role = record.get("role", record.get("from"))
    listed = record.get("tool_calls") or ()
    if not isinstance(listed, list | tuple):
        raise ValueError(f"{where} has tool_calls that are no list")
    calls = tuple(_call(call, where) for call in listed)
    content = record.get("content", record.get("value"))
    if isinstance(content, list):
        content = "".join(_text(part, where) for part in content)
    if content is None and calls:
        content = ""
    if not isinstance(role, str) or not isinstance(content, str):
        raise ValueError(f"{where} has no {'role' if not isinstance(role, str) else 'content'}")
    return Message(_ROLES.get(role, role), content, str(record.get("name") or ""), calls)


def _text(part: Any, where: str) -> str:
    if isinstance(part, Mapping) and isinstance(part.get("text"), str):
        return str(part["text"])
    raise ValueError(f"{where} has a part that is no text: {part!r:.40}")


def _call(record: Any, where: str) -> ToolCall:
    call = record.get("function", record) if isinstance(record, Mapping) else record
    if not isinstance(call, Mapping) or not isinstance(call.get("name"), str):
        raise ValueError(f"{where} has a tool call without a name")
    arguments = _parsed(call.get("arguments") or {}, f"{where}: the arguments of {call['name']}")
    if not isinstance(arguments, dict):
        raise ValueError(f"{where}: the arguments of {call['name']} are no JSON object")
    return ToolCall(call["name"], arguments)


def _parsed(value: Any, what: str) -> Any:
    """JSON where it is given as a text."""
    try:
        return json.loads(value) if isinstance(value, str) else value
    except ValueError:
        raise ValueError(f"{what} are no JSON") from None
