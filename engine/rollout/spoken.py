"""Splits a reply into thought, answer and calls, by its ids, because later prompts use these and never the text."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from marlaas.plugins.messages import ToolCall

from .toolcalls import Form

OPEN, CLOSE = "<think>", "</think>"
SPACE = " \t\r\n"
"""Space between a thought and its answer; other Unicode spaces count as letters, because half of their bytes cannot
be recognised."""
Decode = Callable[[Sequence[int]], str]


@dataclass(frozen=True)
class Spoken:
    """A reply, as ids and as text."""

    tokens: tuple[int, ...]
    """The sampled ids, including the one that ended the turn."""
    text: str
    """The answer: without the thought, tool calls and the token that ended the turn."""
    tool_calls: tuple[ToolCall, ...]
    shown: str
    """The answer as the model wrote it, including tool calls: for people."""
    thinking: str = ""
    """The thought, without its tags."""
    opened: str = ""
    """The tag, with outer space, with which the prompt had begun the thought."""
    ended: bool = False
    """True if the last id ends the turn; a cut reply has no such id."""
    thought: int | None = None
    """Number of ids of the thought, including its closing tag; None if no id ends with it."""
    answer: int = 0
    """Index of the answer's first id: after the thought and the space behind it."""
    cut: bool = False
    """True if the thought was not closed: all ids belong to it, and there is no answer."""


def read_reply(
    tokens: Sequence[int], opened: str, stop: Sequence[int], decode: Decode, calls: Form, tools: bool
) -> Spoken:
    """Read the reply of a base that thinks (``read_plain`` reads others). Any token ids are allowed.

    A thought reaches from ``<think>`` at the very beginning, or from a prompt that has ``opened`` one, to the first
    ``</think>``. A closing tag without an opening one is text.
    """
    said, ended = _said(tokens, stop)
    shown = decode(said)
    begun = bool(opened) or shown.lstrip().startswith(OPEN)
    if not begun:
        return read_plain(tokens, stop, decode, calls, tools)
    inner, closed, answer = shown.partition(CLOSE)
    thinking = inner if opened else inner.lstrip().removeprefix(OPEN)
    answer = answer.lstrip(SPACE)
    text, found = calls(answer, tools)
    end = _first(said, decode, lambda text: CLOSE in text) if closed else len(said)
    start = _first(said, decode, lambda text: bool(text.partition(CLOSE)[2].strip(SPACE))) - 1 if answer else len(said)
    whole = not closed or decode(said[:end]).rstrip().endswith(
        CLOSE
    )  # else one id holds the tag and part of the answer
    return Spoken(
        tokens=tuple(tokens),
        text=text,
        tool_calls=found,
        shown=answer,
        thinking=thinking.strip(),
        opened=opened,
        ended=ended,
        thought=end if whole else None,
        answer=max(end, start) if whole else 0,
        cut=not closed,
    )


def read_plain(tokens: Sequence[int], stop: Sequence[int], decode: Decode, calls: Form, tools: bool) -> Spoken:
    """Read a reply without a thought. Any token ids are allowed."""
    said, ended = _said(tokens, stop)
    shown = decode(said)
    text, found = calls(shown, tools)
    return Spoken(tuple(tokens), text, found, shown, ended=ended)


def opened_thought(prompt: Sequence[int], decode: Decode) -> str:
    """The tag with which a prompt leaves a thought open for the reply; may be empty."""
    tail = decode(prompt[-8:])  # the tag is one id or a few, and so is the space behind it
    _, tag, space = tail.rpartition(OPEN)
    return tag + space if tag and not space.strip() else ""


def stopped_at(tokens: Sequence[int], stops: Sequence[str], decode: Decode) -> int:
    """The number of ids up to the end of the first of the texts ``stops``; all if none occurs."""
    wanted = [stop for stop in stops if stop]
    text = decode(tokens)
    if not any(stop in text for stop in wanted):
        return len(tokens)
    return _first(tokens, decode, lambda text: any(stop in text for stop in wanted))


def before_stop(text: str, stops: Sequence[str]) -> str:
    """``text`` up to the first of ``stops``."""
    stop = first_stop(text, stops)
    return text[: text.index(stop)] if stop else text


def first_stop(text: str, stops: Sequence[str]) -> str:
    """The one of ``stops`` that comes first in ``text``; empty if none does."""
    return min((stop for stop in stops if stop and stop in text), key=text.index, default="")


def _said(tokens: Sequence[int], stop: Sequence[int]) -> tuple[list[int], bool]:
    said = list(tokens)
    ended = bool(said) and said[-1] in stop
    return (said[:-1] if ended else said), ended


def _first(tokens: Sequence[int], decode: Decode, holds: Callable[[str], bool]) -> int:
    low, high = 0, len(tokens)
    while low < high:
        middle = (low + high) // 2
        if holds(decode(tokens[:middle])):
            high = middle
        else:
            low = middle + 1
    return low
