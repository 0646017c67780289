"""Messages from a plugin's process, validated: a dataclass of ours comes out, or ``WireError``.

The process at the other end may be broken or hostile. Every field is checked for type, size and finiteness here, once,
so that nothing behind this file has to doubt what it holds.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, get_args

from marlaas.plugins.host.channel import Record
from marlaas.plugins.rewards import LARGEST

from ..types import EpisodeStatus, Failure
from .protocol import Ask, EpisodeOutcome, EpisodeSpec, Message, Parameter, Reply, ToolCall

_ROLES = ("system", "user", "assistant", "tool")
_STATUSES = get_args(EpisodeStatus)
_PARAMETER_TYPES = ("int", "float", "str", "bool", "json")
_LONGEST_NAME = 128
_MOST_ENTRIES = 256


class WireError(ValueError):
    """The process sent something that the protocol does not know."""


@dataclass(frozen=True)
class Described:
    """An environment as its plugin declares it."""

    name: str
    timeout: float
    description: str
    parameters: tuple[Parameter, ...]


@dataclass(frozen=True)
class Hello:
    """The plugin is imported and serves these environments."""

    environments: tuple[Described, ...]


@dataclass(frozen=True)
class Broken:
    """The process ends, and says why."""

    failure: Failure


@dataclass(frozen=True)
class Asked:
    """An episode asks the model."""

    id: int
    episode: int
    ask: Ask


@dataclass(frozen=True)
class Ended:
    """An episode is over."""

    episode: int
    outcome: EpisodeOutcome


@dataclass(frozen=True)
class Pong:
    """The loop of the process turns."""


Received = Hello | Broken | Asked | Ended | Pong


def decode(record: Record) -> Received:
    """Read one message of a plugin's process."""
    match record.get("op"):
        case "ask":
            return Asked(_count(record, "id"), _count(record, "episode"), _ask(record))
        case "end":
            return Ended(_count(record, "episode"), _outcome(record))
        case "pong":
            return Pong()
        case "hello":
            found = tuple(_described(entry) for entry in _list(record, "environments"))
            if not found or len({entry.name for entry in found}) != len(found):
                raise WireError("hello must name at least one environment, and each once")
            return Hello(found)
        case "broken":
            return Broken(_failure(record.get("failure")))
        case other:
            raise WireError(f"unknown message {other!r:.80}")


def encode_start(episode: int, environment: str, spec: EpisodeSpec) -> Record:
    """The message that starts an episode."""
    return {
        "op": "start",
        "episode": episode,
        "environment": environment,
        "split": spec.split,
        "index": spec.index,
        "seed": spec.seed,
        "member": spec.member,
        "config": spec.config,
        "timeout": spec.timeout,
    }


def encode_reply(id: int, reply: Reply) -> Record:
    """The message that answers an ask."""
    calls = [{"name": call.name, "arguments": call.arguments} for call in reply.tool_calls]
    return {
        "op": "reply",
        "id": id,
        "text": reply.text,
        "finish": reply.finish,
        "turn": reply.turn,
        "tool_calls": calls,
        "thinking": reply.thinking,
    }


def _ask(record: Record) -> Ask:
    messages = tuple(_message(entry) for entry in _list(record, "messages"))
    if not messages:
        raise WireError("an ask has no messages")
    tools = tuple(_clean(_object(entry, "a tool")) for entry in _list(record, "tools"))
    stop = tuple(_string(entry, "a stop") for entry in _list(record, "stop"))
    limit = record.get("max_tokens")
    if limit is not None and (type(limit) is not int or not 0 < limit < 1 << 31):
        raise WireError(f"max_tokens must be a positive whole number, not {limit!r:.80}")
    return Ask(_name(record, "agent"), messages, tools, limit, stop)


def _message(entry: Any) -> Message:
    record = _object(entry, "a message")
    role = record.get("role")
    if role not in _ROLES:
        raise WireError(f"unknown role {role!r:.80}")
    calls = tuple(_tool_call(call) for call in _list(record, "tool_calls"))
    name = _name(record, "name") if "name" in record else ""
    return Message(role, _string(record.get("content"), "content"), name, calls)


def _tool_call(entry: Any) -> ToolCall:
    record = _object(entry, "a tool call")
    return ToolCall(_name(record, "name"), _clean(_object(record.get("arguments"), "arguments")))


def _outcome(record: Record) -> EpisodeOutcome:
    if record.get("status") not in _STATUSES:
        raise WireError(f"unknown status {record.get('status')!r:.80}")
    status: EpisodeStatus = record["status"]
    rewards = {_string(name, "agent")[:_LONGEST_NAME]: _bounded(x, "a reward") for name, x in _pairs(record, "rewards")}
    if (status == "ok") != bool(rewards):
        raise WireError(f"an episode that ends as {status} has {len(rewards)} rewards")
    parts = {_string(name, "part")[:_LONGEST_NAME]: _bounded(x, "a part") for name, x in _pairs(record, "parts")}
    metrics = {
        _string(name, "metric")[:_LONGEST_NAME]: _string(x, "metric") if isinstance(x, str) else _bounded(x, "a metric")
        for name, x in _pairs(record, "metrics")
    }
    failure = record.get("failure")
    return EpisodeOutcome(
        status=status,
        rewards=rewards,
        parts=parts,
        metrics=metrics,
        invalid=_string(record.get("invalid", ""), "invalid"),
        failure=None if failure is None else _failure(failure),
        seconds=_number(record.get("seconds", 0.0), "seconds"),
    )


def _failure(entry: Any) -> Failure:
    record = _object(entry, "a failure")
    return Failure(
        message=_string(record.get("message"), "message"),
        file=_string(record.get("file"), "file"),
        line=_count(record, "line"),
        traceback=_string(record.get("traceback"), "traceback"),
    )


def _described(entry: Any) -> Described:
    record = _object(entry, "an environment")
    parameters = tuple(_parameter(parameter) for parameter in _list(record, "parameters"))
    timeout = _number(record.get("timeout"), "timeout")
    return Described(_name(record, "name"), timeout, _string(record.get("description"), "description"), parameters)


def _parameter(entry: Any) -> Parameter:
    record = _object(entry, "a parameter")
    if record.get("type") not in _PARAMETER_TYPES or not isinstance(record.get("required"), bool):
        raise WireError("a parameter has no known type")
    return Parameter(_name(record, "name"), record["type"], _clean(record.get("default")), record["required"])


def _object(value: Any, what: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise WireError(f"{what} must be an object, not {type(value).__name__}")
    return value


def _list(record: Record, key: str) -> list[Any]:
    value = record.get(key, [])
    if not isinstance(value, list) or len(value) > _MOST_ENTRIES:
        raise WireError(f"{key} must be a list of at most {_MOST_ENTRIES}")
    return value


def _pairs(record: Record, key: str) -> list[tuple[str, Any]]:
    value = _object(record.get(key, {}), key)
    if len(value) > _MOST_ENTRIES:
        raise WireError(f"{key} has over {_MOST_ENTRIES} entries")
    return list(value.items())


def _string(value: Any, what: str) -> str:
    if not isinstance(value, str):
        raise WireError(f"{what} must be a text, not {type(value).__name__}")
    if value.isascii():
        return value
    return value.encode("utf-8", "replace").decode()  # JSON can carry lone surrogates; files and databases cannot


def _clean(value: Any) -> Any:
    """A free-form value, with the texts in it as ``_string`` has them."""
    if isinstance(value, str):
        return _string(value, "a text")
    if isinstance(value, list):
        return [_clean(entry) for entry in value]
    if isinstance(value, dict):
        return {_string(key, "a key"): _clean(entry) for key, entry in value.items()}
    return value


def _name(record: Record, key: str) -> str:
    value = _string(record.get(key), key)
    if not 0 < len(value) <= _LONGEST_NAME:
        raise WireError(f"{key} must have 1 to {_LONGEST_NAME} characters")
    return value


def _count(record: Record, key: str) -> int:
    value = record.get(key)
    if type(value) is not int or not 0 <= value < 1 << 53:
        raise WireError(f"{key} must be a whole number, not {value!r:.80}")
    return value


def _bounded(value: Any, what: str) -> float:
    """A number whose square, and the sum of many, is finite."""
    number = _number(value, what)
    if abs(number) > LARGEST:
        raise WireError(f"{what} must lie between {-LARGEST:g} and {LARGEST:g}")
    return number


def _number(value: Any, what: str) -> float:
    if type(value) not in (int, float):
        raise WireError(f"{what} must be a number, not {type(value).__name__}")
    try:
        number = float(value)
    except OverflowError:
        number = math.inf
    if not math.isfinite(number):
        raise WireError(f"{what} must be finite")
    return number
