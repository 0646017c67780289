"""Splits a reply into thought, answer and calls by its ids; prompts never use its text."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from marlaas.plugins.messages import ToolCall

from ..samplers.options import Extras, Likeliest
from ..samplers.protocol import NewTokens
from .toolcalls import HERMES, Form

OPEN, CLOSE = "<think>", "</think>"
SPACE = " \t\r\n"
"""Other Unicode spaces count as letters."""
Decode = Callable[[Sequence[int]], str]


@dataclass(frozen=True)
class Spoken:
    """A reply, as ids and as text."""

    tokens: tuple[int, ...]
    """With the id that ended the turn."""
    text: str
    """Without tool calls."""
    tool_calls: tuple[ToolCall, ...]
    shown: str
    """With tool calls, for people."""
    thinking: str = ""
    """Without its tags."""
    opened: str = ""
    """The prompt's tag and outer space that began the thought."""
    ended: bool = False
    """The last id ends the turn."""
    thought: int | None = None
    """Number of ids with the closing tag; None if no id ends with it."""
    answer: int = 0
    """First id after the thought and its space."""
    cut: bool = False
    """Unclosed thought: all ids belong to it."""


def read_reply(
    tokens: Sequence[int], opened: str, stop: Sequence[int], decode: Decode, calls: Form, tools: bool
) -> Spoken:
    """For bases that think; any ids.

    A thought reaches from ``<think>`` at the beginning, or from a prompt that ``opened`` it, to the first ``</think>``.
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
    """Without a thought; any ids."""
    said, ended = _said(tokens, stop)
    shown = decode(said)
    text, found = calls(shown, tools)
    return Spoken(tuple(tokens), text, found, shown, ended=ended)


def opened_thought(prompt: Sequence[int], decode: Decode) -> str:
    """The open thought's tag, or empty."""
    tail = decode(prompt[-8:])  # the tag is one id or a few, and so is the space behind it
    _, tag, space = tail.rpartition(OPEN)
    return tag + space if tag and not space.strip() else ""


def stopped_at(tokens: Sequence[int], stops: Sequence[str], decode: Decode) -> int:
    """Ids up to the end of the first stop text, or all."""
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
    """First in ``text``, or empty."""
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


_UNKNOWN = "\ufffd"


class Decoder:
    """Decodes each id only a few times."""

    def __init__(self, decode: Decode) -> None:
        self._decode = decode
        self._ids: list[int] = []
        self._decoded = 0

    def add(self, ids: Sequence[int]) -> str:
        self._ids += ids
        before, now = self._decode(self._ids[: self._decoded]), self._decode(self._ids)
        if now.endswith(_UNKNOWN) or len(now) <= len(before):
            return ""
        self._ids = self._ids[self._decoded :]
        self._decoded = len(self._ids)
        return now[len(before) :]


class ReplyStream:
    """Final text: ``add`` ids, take ``delta``. ``kept`` is set at a stop text.

    No token costs a look at the whole text: long replies would hold the event loop for seconds.
    """

    def __init__(
        self, decode: Decode, ends: Sequence[int], stops: Sequence[str], thinks: bool, opened: bool, tools: bool
    ) -> None:
        """``ends``: ids without text that end a turn. ``thinks``: a thought may begin; ``opened``: in the prompt.
        ``tools``: calls are no text."""
        self._decoder = Decoder(decode)
        self._ends = frozenset(ends)
        self._stops = stops
        self._longest = max(map(len, stops), default=0)
        self._tools = tools
        self._text = ""
        self._thought: int | None = 0 if opened else None
        """Where the thought begins, once that is certain."""
        self._closed: int | None = None
        self._answer: int | None = None if thinks else 0
        """Likewise."""
        self._searched = 0
        self._count = 0
        self._released = [0, 0]
        """Ends of the thought and the answer that were given out."""
        self.kept: int | None = None
        """The number of ids up to the end of the stop text; None before."""

    def add(self, ids: Sequence[int]) -> None:
        for part in [[one] for one in ids] if self._stops else [ids]:
            if self.kept is not None:
                return
            self._count += len(part)
            self._text += self._decoder.add([id_ for id_ in part if id_ not in self._ends])
            if self._answer is None:
                self._place()
            if self._answer is not None:
                begin = max(self._answer, self._searched - self._longest)
                ends = [at for stop in self._stops if (at := self._text.find(stop, begin)) >= 0]
                self._searched = len(self._text)
                if ends:
                    self._text = self._text[: min(ends)]
                    self.kept = self._count

    def take(self, new: NewTokens) -> NewTokens:
        """Returns tokens up to the end of the stop text."""
        before = self._count
        self.add(new.tokens.tolist())
        count, extras = self._count - before, new.extras
        if count == len(new.tokens):
            return new
        if extras is not None:
            near = Likeliest(extras.likeliest.tokens[:count], extras.likeliest.logprobs[:count])
            extras = Extras(extras.logprobs[:count], near)
        return NewTokens(new.tokens[:count], new.logprobs[:count], extras)

    def delta(self) -> tuple[str, str]:
        """New thought and text."""
        thought = text = ""
        if self._thought is not None:
            end = len(self._text) - self._overlap(self._thought, (CLOSE,)) if self._closed is None else self._closed
            begin = max(self._thought, self._released[0])
            part = self._text[begin:end] if self._released[0] else self._text[begin:end].lstrip()
            if thought := part.rstrip():
                self._released[0] = end - len(part) + len(thought)
        if self._answer is not None:
            end = len(self._text) - (self._overlap(self._answer, self._stops) if self.kept is None else 0)
            begin = max(self._answer, self._released[1])
            if text := self._text[begin : min(end, self._before_calls(self._answer, begin)) if self._tools else end]:
                self._released[1] = begin + len(text)
        return thought, text

    def _place(self) -> None:
        text = self._text
        if self._thought is None:
            begun = text.lstrip()
            if begun.startswith(OPEN):
                self._thought = len(text) - len(begun) + len(OPEN)
            elif not OPEN.startswith(begun):
                self._answer = 0
        if self._thought is not None and self._closed is None:
            at = text.find(CLOSE, max(self._thought, self._searched - len(CLOSE)))
            self._closed = at if at >= 0 else None
            self._searched = len(text)
        if self._closed is not None and (answer := text[self._closed + len(CLOSE) :].lstrip(SPACE)):
            self._answer = self._searched = len(text) - len(answer)

    def _before_calls(self, answer: int, begin: int) -> int:
        """What begins like a call may be only that; nothing before ``begin`` is one."""
        first = self._text[answer : answer + 1]
        if not first or first.isspace() or first in "{<":
            return 0
        at = self._text.find(HERMES, begin)
        end = at if at >= 0 else len(self._text) - self._overlap(begin, (HERMES,))
        return begin + len(self._text[begin:end].rstrip())

    def _overlap(self, begin: int, words: Sequence[str]) -> int:
        """Most characters at the end, none before ``begin``, with which a word begins."""
        ends = self._text.endswith
        return max((n for word in words for n in range(1, len(word)) if ends(word[:n], begin)), default=0)
