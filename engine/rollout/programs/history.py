"""Finds the conversation that a request goes on with: the longest one that the request's messages begin with.

Clients send whole histories. What was said is kept as a tree, one for each set of tools, in which a path is a history
as clients send it back. A reply is recognised by its text, without the white space around it, and by its tool calls:
names, and arguments as JSON values. Clients drop thoughts, write JSON in their own way, strip texts (Anthropic's
interface refuses some that end with white space) and send None for an empty text; other messages are compared as they
are. Of several replies that read alike, one that is written alike is taken, and before others one that can be extended.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from ...gateway import wire

Key = tuple[object, ...]
"""Equal for messages that count as the same."""


@dataclass(eq=False)
class Branch:
    """One conversation of the episode, as programs see it."""

    number: int
    """Which of its agent's conversations, as in ``Ask.branch``."""
    turns: int = 0
    """How many replies it has."""
    open: bool = True
    """Whether it can go on: no call is under way in it, and none has failed."""


@dataclass(frozen=True)
class Place:
    """The end of a reply in a branch: where it can be extended or forked."""

    branch: Branch
    turns: int
    """Replies of the branch up to there, this one included."""
    said: wire.Message

    @property
    def extendable(self) -> bool:
        """Whether the branch has gone no further, and can go on."""
        return self.branch.open and self.branch.turns == self.turns


@dataclass(eq=False)
class _Node:
    following: dict[Key, _Node] = field(default_factory=dict)
    places: list[Place] = field(default_factory=list)


@dataclass(frozen=True)
class Found:
    """Where a request leaves what was said before."""

    place: Place | None
    """None where it goes on with nothing."""
    known: int
    """How many of its messages were said by then."""


class History:
    """All that programs have said as one agent."""

    def __init__(self) -> None:
        self._roots: dict[str, _Node] = {}
        self._texts: list[tuple[str, Place]] = []
        """Prompts of plain text with their replies."""

    def find(self, messages: Sequence[wire.Message], tools: Sequence[object]) -> Found:
        """The longest history with which these messages begin."""
        node = self._roots.get(_canonical(tools))
        best, known = None, 0
        for number, (message, key) in enumerate(zip(messages, keys(messages), strict=True), 1):
            node = node.following.get(key) if node is not None else None
            if node is None:
                break
            if node.places:
                best, known = _likest(node.places, message), number
        return Found(best, known)

    def add(self, messages: Sequence[wire.Message], tools: Sequence[object], reply: wire.Message, at: Branch) -> None:
        """A reply was given to these messages; it is the last of the branch."""
        node = self._roots.setdefault(_canonical(tools), _Node())
        for key in keys([*messages, reply]):
            node = node.following.setdefault(key, _Node())
        node.places.append(Place(at, at.turns, reply))

    def find_text(self, prompt: str) -> tuple[Place | None, int]:
        """The longest text with which a plain prompt begins, and its characters."""
        known = [(len(text), place) for text, place in self._texts if prompt.startswith(text)]
        longest = max((length for length, _ in known), default=0)
        places = [place for length, place in known if length == longest]
        return max(places, key=lambda place: place.extendable, default=None), longest

    def add_text(self, text: str, at: Branch) -> None:
        """A plain prompt with the reply to it, which is the last of the branch."""
        self._texts.append((text, Place(at, at.turns, wire.Message("assistant"))))


def keys(messages: Sequence[wire.Message]) -> list[Key]:
    """Of each message, what has to be the same; results of tools are of the tools that were called."""
    names = tools_by_call(messages)
    return [_key(message, names) for message in messages]


def tools_by_call(messages: Sequence[wire.Message]) -> Mapping[str, str]:
    """Names of tools by the ids of calls."""
    return {call.id: call.name for message in messages for call in message.tool_calls}


def _key(message: wire.Message, names: Mapping[str, str]) -> Key:
    if message.role == "assistant":
        calls = tuple((call.name, _read(call.arguments)) for call in message.tool_calls)
        return "assistant", message.content.strip(), calls
    tool = names.get(message.tool_call_id, message.name) if message.role == "tool" else ""
    return message.role, message.content, tool


def _read(arguments: str) -> str:
    """Arguments in one spelling, where they are JSON."""
    try:
        return _canonical(json.loads(arguments))
    except (ValueError, RecursionError):
        return arguments


def _canonical(value: object) -> str:
    return json.dumps(value, sort_keys=True, separators=(",", ":"))


def _likest(places: Sequence[Place], message: wire.Message) -> Place:
    def likeness(place: Place) -> tuple[bool, bool, bool]:
        said = place.said
        return message.content == said.content, message.thinking == said.thinking, place.extendable

    return max(places, key=likeness)
