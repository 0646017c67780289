"""Gives sequences to conversations, and reuses prompts in memory.

Beginnings are hashed at each block's border and the prompt's end. A new prompt copies the longest one of its version;
whole prompts need no pass. Ended ones stay until their sequence is needed (RadixAttention, arXiv 2312.07104) or their
version is retired.
"""

from __future__ import annotations

from collections.abc import Sequence
from heapq import heappop, heappush

from .context import SPARE, Context, Key, Logits, keys_of
from .turn import Conversation, Turn

PART = 4
"""One in this many sequences."""


class Prefixes:
    """The beginnings that sequences hold."""

    def __init__(self) -> None:
        self.logits: dict[Key, Logits] = {}
        """float32 (V,): those after whole prompts."""
        self._holders: dict[Key, dict[int, None]] = {}
        self._held: dict[int, list[Key]] = {}

    def find(self, keys: Sequence[Key]) -> tuple[int | None, int]:
        """The sequence with most of them, and its tokens; (None, 0): none."""
        match = next((key for key in reversed(keys) if key in self._holders), None)
        return (None, 0) if match is None else (next(iter(self._holders[match])), match[0])

    def hold(self, sequence: int, keys: Sequence[Key]) -> None:
        self._held[sequence] = sorted({*self._held.get(sequence, ()), *keys})
        for key in keys:
            self._holders.setdefault(key, {})[sequence] = None

    def cut(self, sequence: int, tokens: int) -> None:
        keys = self._held.pop(sequence, [])
        while keys and keys[-1][0] > tokens:
            key = keys.pop()
            del self._holders[key][sequence]
            if not self._holders[key]:
                del self._holders[key]
                self.logits.pop(key, None)
        if keys:
            self._held[sequence] = keys

    def last(self, sequence: int) -> int:
        """Tokens that only this sequence holds; 0: none."""
        keys = self._held.get(sequence)
        return keys[-1][0] if keys and len(self._holders[keys[-1]]) == 1 else 0


class SharedMemory:
    """The sequences of one context."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._free = list(range(SPARE, context.room))
        self._prefixes = Prefixes()
        self._kept: dict[int, str] = {}
        """Versions of the kept sequences, the least recently used first."""

    @property
    def free(self) -> int:
        return len(self._free) + len(self._kept)

    @property
    def grows(self) -> bool:
        return self._context.room < self._context.sequences

    def grow(self, more: int, needed: bool) -> None:
        """Raises ``MemoryError`` without memory for ``needed`` sequences."""
        before = self._context.room
        self._context.grow(max(more, before // PART), needed)
        self._free += range(before, self._context.room)

    def place(self, turns: Sequence[Turn]) -> Logits | None:
        """Give sequences to first turns with a common prompt.

        Returns the logits after it if all is known.
        """
        first = turns[0]
        logits = self._prefixes.logits.get(first.keys[-1])
        source, tokens = self._prefixes.find(first.keys if logits is not None else first.keys[:-1])
        slots = self._take(len(turns), source)
        for turn, slot in zip(turns, slots, strict=True):
            turn.conversation.place(slot, turn)
        if source is not None and source != slots[0]:
            self._context.copy(source, [slots[0]], tokens)
        elif source is not None:
            self._prefixes.cut(source, tokens)
            self._context.cut(source, tokens)
        return logits

    def awaits(self, turn: Turn, other: Turn) -> bool:
        """True if reading the prompt of ``other`` gives ``turn`` more in memory."""
        common = max((tokens for tokens, _ in {*turn.keys[:-1]} & {*other.keys}), default=0)
        return common > self._prefixes.find(turn.keys[:-1])[1]

    def share(self, turns: Sequence[Turn], logits: Logits) -> None:
        """The first turn holds the prompt of all; ``logits`` (V,) follow it."""
        first, *others = [turn.conversation.sequence for turn in turns]
        keys = turns[0].keys
        if others:
            self._context.copy(first, others, len(turns[0].prompt))
        for sequence in (first, *others):
            self._prefixes.hold(sequence, keys)
        if keys[-1] not in self._prefixes.logits:
            self._prefixes.logits[keys[-1]] = logits.copy()

    def extend(self, turn: Turn) -> None:
        """Let forks begin with this turn's text.

        Sampled tokens have other last bits than prefilled ones, so ``alike`` turns share only the prompt.
        """
        slot = turn.conversation.slot
        if slot is not None and not turn.alike:
            held = turn.conversation.tokens[: self._context.held[slot]]
            self._prefixes.hold(slot, keys_of(turn.version.name, False, held)[:-1])

    def empty(self, sequence: int) -> None:
        self._prefixes.cut(sequence, 0)
        self._context.cut(sequence, 0)

    def end(self, conversation: Conversation, intact: bool) -> None:
        """Keep an ended conversation's prompt if no other sequence does."""
        slot, version = conversation.slot, conversation.version
        if slot is None or version is None:
            return
        self._prefixes.cut(slot, conversation.begun)
        tokens = self._prefixes.last(slot)
        if not (intact and tokens) or version.retired:
            self._give_up(slot)
            return
        self._context.cut(slot, tokens)
        for other in [other for other in self._kept if not self._prefixes.last(other)]:
            self._give_up(other)
        if len(self._kept) >= max(1, (self._context.room - SPARE) // PART):
            self._give_up(next(iter(self._kept)))
        self._kept[slot] = version.name

    def retire(self, version: str | None = None) -> None:
        """None: of all versions."""
        for sequence in [sequence for sequence, owner in self._kept.items() if version in (owner, None)]:
            self._give_up(sequence)

    def _take(self, count: int, source: int | None) -> list[int]:
        if source in self._kept:
            self._kept[source] = self._kept.pop(source)
        slots: list[int] = []
        while len(slots) < count:
            oldest = next(iter(self._kept), None)
            if self._free or oldest is None:
                slots.append(heappop(self._free))
            elif oldest == source:  # the last one becomes the conversation's
                del self._kept[oldest]
                slots.insert(0, oldest)
            else:
                self._give_up(oldest)
        return slots

    def _give_up(self, sequence: int) -> None:
        self._kept.pop(sequence, None)
        self.empty(sequence)
        heappush(self._free, sequence)
