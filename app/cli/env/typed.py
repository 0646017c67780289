"""What a person types at the model's place: a command, or a reply with its text and its tool calls. Pure.

    /call price item=ink        a call; values are read as the tool's schema says, quotes keep spaces together
    /call price {"item": "ink"} the same in JSON
    //half                      the text "/half"

A call that the tool will refuse goes through: what the model would be told about it is what one plays for.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

from marlaas.plugins.messages import Ask, Reply, ToolCall

COMMANDS = {
    "again": "begin the same instance anew",
    "next": "go on to the next instance",
    "tools": "show the tools that this agent has",
    "help": "show this",
    "quit": "end (so does Ctrl-D)",
}
CALL = "/call"
_LONGEST_NAME = 128


@dataclass(frozen=True)
class Typed:
    """A reply that was typed."""

    text: str
    calls: tuple[ToolCall, ...] = ()


def command_of(text: str) -> str:
    """The command in a line, without its slash; empty where the line is a reply. Raises ``ValueError`` if unknown."""
    word = text.strip()
    if not word.startswith("/") or word.startswith("//") or "\n" in word or _is_call(word):
        return ""
    if word[1:] not in COMMANDS:
        raise ValueError(f"There is no command {word}; a reply that begins with / is typed as /{word}")
    return word[1:]


def reply_of(text: str, tools: Sequence[Mapping[str, Any]]) -> Typed:
    """A reply of one line or several; lines that are calls are taken out. Raises ``ValueError`` for a broken call."""
    calls, said = [], []
    for part in text.split("\n"):
        if _is_call(part):
            calls.append(call_of(part, tools))
        else:
            said.append(part[1:] if part.startswith("//") else part)
    return Typed("\n".join(said), tuple(calls))


def call_of(text: str, tools: Sequence[Mapping[str, Any]]) -> ToolCall:
    """Read ``/call NAME ARGUMENT=VALUE …`` or ``/call NAME {JSON}``."""
    name, _, rest = text.strip().removeprefix(CALL).strip().partition(" ")
    if not name or len(name) > _LONGEST_NAME:
        raise ValueError(f"A call has a name: {CALL} NAME ARGUMENT=VALUE …")
    rest = rest.strip()
    if rest.startswith("{"):
        return ToolCall(name, _table(rest))
    arguments = {}
    for word in _words(rest):
        argument, equals, value = word.partition("=")
        if not argument or not equals:
            raise ValueError(f"{word!r} is no ARGUMENT=VALUE; quotes keep a value with spaces together")
        arguments[argument] = _value(value, _schema(name, argument, tools))
    return ToolCall(name, arguments)


def as_reply(typed: Typed, ask: Ask, turn: int) -> Reply:
    """The reply that the environment gets: cut, like a model's, at the first text at which it is to stop."""
    found = [typed.text.index(stop) for stop in ask.stop if stop and stop in typed.text]
    text = typed.text[: min(found)] if found else typed.text
    return Reply(text, "tool" if typed.calls else "stop", turn, typed.calls)


def _is_call(text: str) -> bool:
    return text.strip() == CALL or text.strip().startswith(f"{CALL} ")


def _words(text: str) -> list[str]:
    try:
        return shlex.split(text)
    except ValueError as error:
        raise ValueError(f"The call cannot be read: {error}") from None


def _table(text: str) -> dict[str, Any]:
    try:
        value = _json(text)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"The call's JSON cannot be read: {error}") from None
    if not isinstance(value, dict):
        raise ValueError("The call's JSON must be an object")
    return value


def _schema(tool: str, argument: str, tools: Sequence[Mapping[str, Any]]) -> Mapping[str, Any]:
    """The schema of an argument; empty where the plugin's schema does not have the usual form."""
    found: Any = next((each.get("function") for each in tools if _name(each) == tool), None)
    for key in ("parameters", "properties", argument):
        found = found.get(key) if isinstance(found, dict) else None
    return found if isinstance(found, dict) else {}


def _name(tool: Mapping[str, Any]) -> object:
    function = tool.get("function")
    return function.get("name") if isinstance(function, dict) else None


def _value(text: str, schema: Mapping[str, Any]) -> Any:
    """As the schema's type where it can be read so; texts stay texts."""
    if schema.get("type") == "string" or text in (schema.get("enum") or ()):
        return text
    try:
        return _json(text)
    except (ValueError, RecursionError):
        return text


def _json(text: str) -> Any:
    return json.loads(text, parse_constant=_refuse)


def _refuse(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is no JSON")
