"""Canned replies, such as an untrained, a collapsed or a cheating policy gives.

Every environment must survive ``JUNK``; ``CONSTANTS`` are tried as answers to everything, for the best of their scores
is what a policy gets without reading.
"""

from __future__ import annotations

from dataclasses import dataclass

from marlaas.plugins.messages import Ask, Reply, ToolCall

_LONGEST_TOKEN = 8
"""Characters for each token that an environment allows."""


@dataclass(frozen=True)
class Canned:
    """One reply to every ask."""

    label: str
    """How a sentence names it."""
    text: str
    calls: bool = False
    """Whether it calls the first tool, with an argument that no tool has."""

    def reply(self, ask: Ask, turn: int) -> Reply:
        """The reply to ``ask``, up to its stops and its limit; an agent's tools are named in its first ask."""
        if self.calls:
            name = str(ask.tools[0].get("function", {}).get("name", "tool")) if ask.tools else "tool"
            return Reply("", "tool", turn, (ToolCall(name, {"": [None]}),))
        text = self.text
        for stop in ask.stop:
            text = text.partition(stop)[0] if stop else text
        longest = len(text) if ask.max_tokens is None else ask.max_tokens * _LONGEST_TOKEN
        return Reply(text[:longest], "stop" if len(text) <= longest else "length", turn)


def _answer(text: str) -> Canned:
    return Canned(f"the answer '{text}'", text)


EMPTY = Canned("the empty reply", "")

CONSTANTS = (
    EMPTY,
    *map(_answer, ("0", "1", "None", "False", "True", "yes", "no", "A")),
    Canned("the answer of 50 'a'", "a" * 50),
    Canned("the list of all numbers to 999", " ".join(map(str, range(1000)))),
    *map(_answer, ("<answer>0</answer>", "\\boxed{0}")),
)

JUNK = (
    *CONSTANTS,
    *map(_answer, ("NaN", "1e999", "²")),
    Canned("a reply of 20,000 characters", "word " * 4_000),
    Canned("a number of 5,000 digits", "9" * 5_000),
    Canned("5,000 open brackets", "[" * 5_000),
    Canned("control characters and rare Unicode", "\x00\x1b[2J\u202e\ufeff\u0661\U0001f9ea\u0301\n\t\r\x7f"),
    Canned("an unclosed tool call", '<tool_call>{"name": "x", "arguments": {'),
)

WRONG_CALL = Canned("a tool call with a wrong argument", "", calls=True)
"""For environments that offer tools: without any, what a model says is never a call."""
