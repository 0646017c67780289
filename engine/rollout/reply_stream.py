"""A reply while it is sampled: its text piece by piece, the thought apart from the answer, up to a text that ends it.

Pieces are only ever what the whole reply will have in that place: bytes that are no character yet, space that may be
cut off, the beginning of a tag, of a call or of a text that ends the reply are held back until that is known.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from .spoken import CLOSE, OPEN, SPACE

CALL = "<tool_call>"
"""How a call begins, in the form that has tags; other forms are whole replies."""
_UNKNOWN = "\ufffd"
Decode = Callable[[Sequence[int]], str]


class Delta(NamedTuple):
    """What is new since the last time."""

    thinking: str
    text: str


class Decoder:
    """Text of ids that come one after the other; each is decoded a few times, however many there are."""

    def __init__(self, decode: Decode) -> None:
        self._decode = decode
        self._ids: list[int] = []
        """Those since the last but one border between characters."""
        self._told = 0
        """How many of them have been told."""

    def add(self, ids: Sequence[int]) -> str:
        """The text that is certain by now, and was not told yet."""
        self._ids += ids
        before, now = self._decode(self._ids[: self._told]), self._decode(self._ids)
        if now.endswith(_UNKNOWN) or len(now) <= len(before):
            return ""
        self._ids = self._ids[self._told :]
        self._told = len(self._ids)
        return now[len(before) :]

    def rest(self) -> str:
        """The text that is left."""
        return self._decode(self._ids)[len(self._decode(self._ids[: self._told])) :]


class ReplyStream:
    """One reply: give it ids with ``add``, take text with ``delta``; ``kept`` says when a text has ended it."""

    def __init__(
        self, decode: Decode, ends: Sequence[int], stops: Sequence[str], thinks: bool, opened: bool, tools: bool
    ) -> None:
        """``ends``: ids that end a turn and have no text. ``thinks``: whether a reply may begin with a thought;
        ``opened``: whether the prompt has begun it. ``tools``: whether calls are no part of the text."""
        self._decoder = Decoder(decode)
        self._ends = frozenset(ends)
        self._stops = stops
        self._longest = max(map(len, stops), default=0)
        self._tools = tools
        self._text = ""
        self._thought: int | None = 0 if opened else None
        """Where the thought begins, once that is known."""
        self._closed: int | None = None
        """Where it ends."""
        self._answer: int | None = None if thinks else 0
        """Where the answer begins, once that is known."""
        self._looked = 0
        self._told = [0, 0]
        """Up to where thought and answer were told."""
        self._count = 0
        self.kept: int | None = None
        """How many ids there are up to the end of a text that ends the reply; None until one was found."""

    def add(self, ids: Sequence[int]) -> None:
        """Further ids of the reply; those behind a text that ends it are ignored."""
        for one in [[one] for one in ids] if self._stops else [ids]:
            if self.kept is not None:
                return
            self._count += len(one)
            self._text += self._decoder.add([id_ for id_ in one if id_ not in self._ends])
            self._place()
            if self._stops and self._stopped():
                self.kept = self._count

    def delta(self) -> Delta:
        """What is certain by now, and was not given before."""
        thinking = text = ""
        if self._thought is not None:
            thinking = self._thinking(self._thought)
        if self._answer is not None:
            text = self._answering(self._answer)
        return Delta(thinking, text)

    def _place(self) -> None:
        """Find where the thought and the answer begin, as ``spoken.read_reply`` does."""
        if self._answer is not None:
            return
        if self._thought is None:
            begun = self._text.lstrip()
            if begun.startswith(OPEN):
                self._thought = len(self._text) - len(begun) + len(OPEN)
            elif not OPEN.startswith(begun):
                self._answer = 0
                return
            else:
                return
        if self._closed is None:
            at = self._text.find(CLOSE, max(self._thought, self._looked - len(CLOSE)))
            self._looked = len(self._text)
            if at < 0:
                return
            self._closed = self._looked = at
        behind = self._text[self._closed + len(CLOSE) :].lstrip(SPACE)
        if behind:
            self._answer = self._looked = len(self._text) - len(behind)

    def _stopped(self) -> bool:
        if self._answer is None:
            return False
        begin = max(self._answer, self._looked - self._longest)
        self._looked = len(self._text)
        found = [at for stop in self._stops if (at := self._text.find(stop, begin)) >= 0]
        if found:
            self._text = self._text[: min(found)]
        return bool(found)

    def _thinking(self, begin: int) -> str:
        """The thought without the space around it, and without the beginning of its closing tag."""
        end = len(self._text) if self._closed is None else self._closed
        if self._closed is None:
            end -= _overlap(self._end(begin, len(CLOSE)), CLOSE)
        begin = max(begin, self._told[0])
        part = self._text[begin:end]
        if not self._told[0]:
            part = part.lstrip()
        told = part.rstrip()
        if not told:
            return ""
        self._told[0] = end - (len(part) - len(told))
        return told

    def _answering(self, begin: int) -> str:
        """The answer up to what may yet turn out to be no part of it."""
        end = len(self._text)
        if self._stops and self.kept is None:
            end -= max(_overlap(self._end(begin, len(stop)), stop) for stop in self._stops)
        if self._tools:
            end = min(end, self._before_calls(begin))
        at = max(begin, self._told[1])
        if end <= at:
            return ""
        self._told[1] = end
        return self._text[at:end]

    def _before_calls(self, begin: int) -> int:
        """Where a call may begin, and the space before it."""
        first = self._text[begin : begin + 1]
        if not first or first.isspace() or first in "{<":
            return begin
        begin = max(begin, self._told[1])  # what was told is no call
        at = self._text.find(CALL, begin)
        end = at if at >= 0 else len(self._text) - _overlap(self._end(begin, len(CALL)), CALL)
        return begin + len(self._text[begin:end].rstrip())

    def _end(self, begin: int, most: int) -> str:
        """At most so many characters of the text's end, of those behind ``begin``."""
        return self._text[max(begin, len(self._text) - most) :]


def _overlap(text: str, wanted: str) -> int:
    """How many characters at the end of ``text`` may be the beginning of ``wanted``."""
    most = min(len(text), len(wanted) - 1)
    return next((size for size in range(most, 0, -1) if text.endswith(wanted[:size])), 0)
