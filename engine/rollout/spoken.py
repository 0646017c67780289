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
    """Final text: ``add`` ids, take ``delta``. ``kept`` is set at a stop text."""

    def __init__(
        self, decode: Decode, ends: Sequence[int], stops: Sequence[str], thinks: bool, opened: bool, tools: bool
    ) -> None:
        """``ends``: ids without text that end a turn. ``thinks``: a thought may begin; ``opened``: in the prompt.
        ``tools``: calls are no text."""
        self._decoder = Decoder(decode)
        self._ends = frozenset(ends)
        self._stops = stops
        self._thinks, self._opened, self._tools = thinks, opened, tools
        self._text = ""
        self._count = 0
        self._released = [0, 0]
        """Characters of thought and answer that were given out."""
        self.kept: int | None = None
        """The number of ids up to the end of the stop text; None before."""

    def add(self, ids: Sequence[int]) -> None:
        for part in [[one] for one in ids] if self._stops else [ids]:
            if self.kept is not None:
                return
            self._count += len(part)
            self._text += self._decoder.add([id_ for id_ in part if id_ not in self._ends])
            answer = self._parts()[1] if self._stops else ""
            ends = [at for stop in self._stops if (at := answer.find(stop)) >= 0]
            if ends:
                self._text = self._text[: len(self._text) - len(answer) + min(ends)]
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
        thought, answer, thinking = self._parts()
        thought = thought.lstrip()
        if thinking:
            thought = thought[: len(thought) - _overlap(thought, (CLOSE,))]
        end = len(answer) if self.kept is not None else len(answer) - _overlap(answer, self._stops)
        if self._tools:
            end = min(end, _before_calls(answer))
        return self._release(0, thought.rstrip()), self._release(1, answer[:end])

    def _parts(self) -> tuple[str, str, bool]:
        """True: the thought continues."""
        text = self._text
        if not self._thinks:
            return "", text, False
        if not self._opened:
            begun = text.lstrip()
            if not begun.startswith(OPEN):
                return "", "" if OPEN.startswith(begun) else text, False
            text = begun[len(OPEN) :]
        thought, closed, answer = text.partition(CLOSE)
        return thought, answer.lstrip(SPACE), not closed

    def _release(self, part: int, text: str) -> str:
        new = text[self._released[part] :]
        self._released[part] += len(new)
        return new


def _before_calls(answer: str) -> int:
    """What begins like a call may be only that."""
    if not answer or answer[0].isspace() or answer[0] in "{<":
        return 0
    at = answer.find(HERMES)
    return len(answer[: at if at >= 0 else len(answer) - _overlap(answer, (HERMES,))].rstrip())


def _overlap(text: str, words: Sequence[str]) -> int:
    """Most characters at the end with which a word begins."""
    sizes = (size for word in words for size in range(1, len(word)) if text.endswith(word[:size]))
    return max(sizes, default=0)
