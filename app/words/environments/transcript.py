"""An episode as lines of text, while it is played: what the model is told, what it says, and how it ended. Pure.

Everything here was written by a plugin or a model: it is made safe, cut where it is very long, and indented under the
role that said it, so that no text can pass for another's.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from ..format import duration, excerpt, line, number, pad

if TYPE_CHECKING:
    from marlaas.engine.environments import EpisodeOutcome
    from marlaas.engine.trajectories import Failure
    from marlaas.plugins.messages import Message, Reply, ToolCall
    from marlaas.plugins.parameters import Parameter

LABEL = 10
"""Cells of the column of roles."""
CHARACTERS, LINES = 20_000, 300
"""Most characters and lines of one message that are shown."""
TRACEBACK_LINES = 20
_ENDINGS = {
    "ok": "ended",
    "skip": "was skipped by the environment",
    "timeout": "ran out of time",
    "error": "failed",
    "cancelled": "was cancelled",
}


def labelled(label: str, text: str) -> list[str]:
    """A text under its role; lines beyond the first are indented."""
    first, *others = excerpt(text, CHARACTERS, LINES).split("\n")
    rows = [f"{pad(line(label, LABEL), LABEL)} {first}", *(f"{pad('', LABEL)} {row}" for row in others)]
    return [row.rstrip() for row in rows]


def message(said: Message) -> list[str]:
    """A message that an agent is told; for a tool's result also the tool's name."""
    label = "result" if said.role == "tool" else said.role
    text = f"{said.name}: {said.content}" if said.role == "tool" and said.name else said.content
    return [*labelled(label, text), *(row for call in said.tool_calls for row in labelled("call", call_text(call)))]


def reply(said: Reply) -> list[str]:
    """What a policy said; an empty text is shown as such, because that is what the environment gets."""
    rows = labelled("thinking", said.thinking) if said.thinking else []
    if said.text or not said.tool_calls:
        rows += labelled("reply", said.text if said.text.strip() else f"(nothing: {said.text!r})")
    rows += [row for call in said.tool_calls for row in labelled("call", call_text(call))]
    return [*rows, *labelled("", "(cut off by the length limit)")] if said.finish == "length" else rows


def call_text(call: ToolCall) -> str:
    """A call in Python's notation."""
    return f"{call.name}({', '.join(f'{name}={_json(value)}' for name, value in call.arguments.items())})"


def tools(schemas: Sequence[Mapping[str, Any]]) -> list[str]:
    """The tools of an agent, one a line: how to call them, and what they are for."""
    rows = []
    for schema in schemas:
        function = _table(schema.get("function"))
        parameters = _table(function.get("parameters"))
        needed = parameters.get("required")
        arguments = ", ".join(
            f"{name}{'' if isinstance(needed, list) and name in needed else '?'}: {_kind(_table(described))}"
            for name, described in _table(parameters.get("properties")).items()
        )
        purpose = str(function.get("description") or "")
        rows += labelled("tool", f"{function.get('name')}({arguments}){'  ' if purpose else ''}{purpose}")
    return rows


def outcome(ended: EpisodeOutcome) -> list[str]:
    """How an episode ended: rewards, parts and logged values; or the failure and its place."""
    rows = [f"The episode {_ENDINGS[ended.status]} after {duration(ended.seconds)}."]
    if ended.invalid:
        rows += labelled("invalid", ended.invalid)
    if ended.rewards:
        rows += labelled("reward", _listed(ended.rewards) if len(ended.rewards) > 1 else _only(ended.rewards))
    if ended.parts:
        rows += labelled("parts", _listed(ended.parts))
    if ended.metrics:
        rows += labelled("logged", _listed(ended.metrics))
    return [*rows, *failure(ended.failure)] if ended.failure else rows


def failure(failed: Failure) -> list[str]:
    """What went wrong, where, and the end of its traceback."""
    line_number = f", line {failed.line}" if failed.line else ""
    place = f"{failed.file}{line_number}: " if failed.file else ""
    rows = labelled("error", f"{place}{failed.message}")
    trace = failed.traceback.strip().split("\n")[-TRACEBACK_LINES:] if failed.traceback.strip() else []
    return [*rows, *(row for text in trace for row in labelled("", text))]


def settings(parameters: Sequence[Parameter], config: Mapping[str, Any]) -> str:
    """The parameters of the episode, in the order in which the environment declares them."""
    return ", ".join(f"{line(p.name)} = {line(_json(config[p.name]), 60)}" for p in parameters if p.name in config)


def _listed(values: Mapping[str, float | str]) -> str:
    return ", ".join(f"{name} {value if isinstance(value, str) else number(value)}" for name, value in values.items())


def _only(rewards: Mapping[str, float]) -> str:
    (value,) = rewards.values()
    return number(value)


def _kind(described: Mapping[str, Any]) -> str:
    choices = described.get("enum")
    return " | ".join(map(_json, choices)) if isinstance(choices, list) else str(described.get("type") or "any")


def _table(value: Any) -> Mapping[str, Any]:
    """The value as a table, empty where it is none: schemas come from the plugin and may hold anything."""
    return value if isinstance(value, dict) else {}


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)
