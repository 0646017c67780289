"""Messages from a plugin's process, validated: a dataclass of ours comes out, or ``WireError``.

The process at the other end may be broken or hostile. Every field is checked for type, size, depth and finiteness here,
once, so that nothing behind this file has to doubt what it holds.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, get_args

from marlaas.plugins.host.channel import Record
from marlaas.plugins.messages import Ask, Fork, Message, Reply, ToolCall
from marlaas.plugins.parameters import Parameter

from ...trajectories import EpisodeStatus, Failure, TurnReward
from ..protocol import EpisodeOutcome, EpisodeSpec, Ranking, Unscored
from .fields import (
    LONGEST_NAME,
    LONGEST_PAGE,
    WireError,
    a_count,
    a_list,
    a_name,
    a_number,
    a_text,
    an_object,
    bounded,
    clean,
    cut,
    entries,
    named,
    pairs,
)

_ROLES = ("system", "user", "assistant", "tool")
_STATUSES = get_args(EpisodeStatus)
_PARAMETER_TYPES = ("int", "float", "str", "bool", "json")
_MOST_MEMBERS = 4096
"""Of a group, as a task file may ask for."""
_MOST_PAID = 1000


@dataclass(frozen=True)
class Described:
    """An environment as its plugin declares it."""

    name: str
    timeout: float
    description: str
    parameters: tuple[Parameter, ...]
    scored: bool = False
    """A function of its own scores what was played, in a scoring process."""
    ranked: bool = False
    """A function of its own compares the members of a training group, in a scoring process."""
    score_timeout: float = 30.0
    """Seconds that one call of either may take."""
    closes: bool = False
    """It is in the class form and has something to close when its process ends."""
    agents: tuple[str, ...] = ()
    """Who speaks in it; empty where its author does not say."""

    @property
    def recorded(self) -> bool:
        """Whether somebody needs to see what was said."""
        return self.scored or self.ranked


Outcome = EpisodeOutcome | Unscored | Ranking


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
    """An episode, a scoring or a ranking is over."""

    episode: int
    outcome: Outcome


@dataclass(frozen=True)
class Pong:
    """The loop of the process turns."""


Received = Hello | Broken | Asked | Ended | Pong


def decode(record: Record) -> Received:
    """Read one message of a plugin's process."""
    try:
        return _decode(record)
    except RecursionError:
        raise WireError("a message is nested too deeply") from None


def _decode(record: Record) -> Received:
    match record.get("op"):
        case "ask":
            return Asked(a_count(record, "id"), a_count(record, "episode"), _ask(record))
        case "end":
            played = record.get("status") == "played"
            return Ended(a_count(record, "episode"), _unscored(record) if played else _outcome(record))
        case "ranked":
            return Ended(a_count(record, "episode"), _ranking(record))
        case "pong":
            return Pong()
        case "hello":
            found = tuple(_described(entry) for entry in a_list(record, "environments"))
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
    messages = tuple(_message(entry) for entry in a_list(record, "messages"))
    if not messages:
        raise WireError("an ask has no messages")
    tools = tuple(clean(an_object(entry, "a tool")) for entry in a_list(record, "tools"))
    stop = tuple(a_text(entry, "a stop") for entry in a_list(record, "stop"))
    limit = record.get("max_tokens")
    if limit is not None and (type(limit) is not int or not 0 < limit < 1 << 31):
        raise WireError(f"max_tokens must be a positive whole number, not {limit!r:.80}")
    branch = a_count(record, "branch") if "branch" in record else 0
    return Ask(a_name(record, "agent"), messages, tools, limit, stop, branch, _fork(record.get("fork")))


def _fork(entry: Any) -> Fork | None:
    if entry is None:
        return None
    record = an_object(entry, "a fork")
    turns = a_count(record, "turns")
    if not turns:
        raise WireError("a fork leaves a conversation after its first reply at the earliest")
    return Fork(a_name(record, "agent"), a_count(record, "branch"), turns)


def _message(entry: Any) -> Message:
    record = an_object(entry, "a message")
    role = record.get("role")
    if role not in _ROLES:
        raise WireError(f"unknown role {role!r:.80}")
    calls = tuple(_tool_call(call) for call in a_list(record, "tool_calls"))
    name = a_name(record, "name") if "name" in record else ""
    return Message(role, a_text(record.get("content"), "content"), name, calls)


def _tool_call(entry: Any) -> ToolCall:
    record = an_object(entry, "a tool call")
    return ToolCall(a_name(record, "name"), clean(an_object(record.get("arguments"), "arguments")))


def _outcome(record: Record) -> EpisodeOutcome:
    if record.get("status") not in _STATUSES:
        raise WireError(f"unknown status {record.get('status')!r:.80}")
    status: EpisodeStatus = record["status"]
    rewards = _by_agent(record.get("rewards", {}))
    if (status == "ok") != bool(rewards):
        raise WireError(f"an episode that ends as {status} has {len(rewards)} rewards")
    parts = {a_text(name, "part")[:LONGEST_NAME]: bounded(x, "a part") for name, x in pairs(record, "parts")}
    failure = record.get("failure")
    return EpisodeOutcome(
        status=status,
        rewards=rewards,
        parts=parts,
        metrics=_metrics(record),
        invalid=cut(record.get("invalid", ""), "invalid"),
        failure=None if failure is None else _failure(failure),
        seconds=a_number(record.get("seconds", 0.0), "seconds"),
        paid=_paid(record),
        task=clean(record.get("task")),
    )


def _unscored(record: Record) -> Unscored:
    earned, seconds = _by_agent(record.get("earned", {})), a_number(record.get("seconds", 0.0), "seconds")
    return Unscored(clean(record.get("task")), earned, _metrics(record), seconds, _paid(record))


def _ranking(record: Record) -> Ranking:
    rewards = tuple(_by_agent(entry) for entry in a_list(record, "rewards", _MOST_MEMBERS))
    if not all(rewards):
        raise WireError("a ranking gives every member a reward")
    return Ranking(rewards)


def _by_agent(value: Any) -> dict[str, float]:
    return {a_text(name, "agent")[:LONGEST_NAME]: bounded(x, "a reward") for name, x in entries(value, "rewards")}


def _metrics(record: Record) -> dict[str, float | str]:
    return {
        a_text(name, "metric")[:LONGEST_NAME]: cut(x, "metric") if isinstance(x, str) else bounded(x, "a metric")
        for name, x in pairs(record, "metrics")
    }


def _paid(record: Record) -> tuple[TurnReward, ...]:
    found = [an_object(entry, "a reward for a turn") for entry in a_list(record, "paid", _MOST_PAID)]
    return tuple(
        TurnReward(
            a_name(one, "agent"),
            a_count(one, "turns"),
            bounded(one.get("amount"), "a reward for a turn"),
            a_text(one.get("name", ""), "the name of a reward")[:LONGEST_NAME],
        )
        for one in found
    )


def _failure(entry: Any) -> Failure:
    record = an_object(entry, "a failure")
    return Failure(
        message=cut(record.get("message"), "message"),
        file=cut(record.get("file"), "file"),
        line=a_count(record, "line"),
        traceback=cut(record.get("traceback"), "traceback", LONGEST_PAGE),
    )


def _described(entry: Any) -> Described:
    record = an_object(entry, "an environment")
    parameters = tuple(_parameter(parameter) for parameter in a_list(record, "parameters"))
    return Described(
        name=a_name(record, "name"),
        timeout=a_number(record.get("timeout"), "timeout"),
        description=cut(record.get("description"), "description", LONGEST_PAGE),
        parameters=parameters,
        scored=record.get("scored") is True,
        ranked=record.get("ranked") is True,
        score_timeout=a_number(record.get("score_timeout", 30.0), "score_timeout"),
        closes=record.get("closes") is True,
        agents=tuple(named(agent, "an agent's name") for agent in a_list(record, "agents")),
    )


def _parameter(entry: Any) -> Parameter:
    record = an_object(entry, "a parameter")
    if record.get("type") not in _PARAMETER_TYPES or not isinstance(record.get("required"), bool):
        raise WireError("a parameter has no known type")
    for end in ("low", "high"):
        if record.get(end) is not None:
            a_number(record[end], end)
    choices = tuple(clean(choice) for choice in a_list(record, "choices"))
    if any(type(choice) not in (int, str) for choice in choices):
        raise WireError("choices are texts or whole numbers")
    return Parameter(
        name=a_name(record, "name"),
        type=record["type"],
        default=clean(record.get("default")),
        required=record["required"],
        low=record.get("low"),
        high=record.get("high"),
        choices=choices,
    )
