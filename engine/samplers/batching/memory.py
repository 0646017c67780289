"""Assigns sequences to conversations, and shares their memory.

A computed prompt is copied to equal requests, and its first blocks to prompts of the same version that begin with
them. An ended conversation's sequence is kept until it is needed or its version is retired.
"""

from __future__ import annotations

from collections.abc import Sequence

from .context import BLOCK, Context, Key, Logits, Prefixes, Prompt, Slots, blocks_of, common
from .turn import SequenceState, Turn

PART = 4
"""One in this many sequences may be kept for reuse."""
STEP = 4
"""Growth by at least one in this many sequences, because growing copies their memory."""


class SharedMemory:
    """The sequences of one context in ``slots``."""

    def __init__(self, context: Context, slots: Slots) -> None:
        self._context = context
        self._slots = slots
        self._prompts: dict[Key, Prompt] = {}
        """Prompts that can be copied, the newest of each key."""
        self._prefixes = Prefixes()
        self._kept: dict[int, str] = {}
        """Versions of the kept sequences, the least recently used first."""

    @property
    def free(self) -> int:
        return self._slots.free + len(self._kept)

    @property
    def grows(self) -> bool:
        return self._slots.count < self._slots.most

    def widen(self, more: int, needed: bool) -> None:
        """Add ``more`` sequences or some more, if the machine has memory to spare.

        If not, and they are ``needed`` to continue, add two. Raises ``MemoryError`` if there is no memory for those.
        """
        step = max(more, self._slots.count // STEP)
        count = min(self._slots.most, self._slots.count + step + step % 2)
        if self._context.grow(count, False):
            self._slots.widen(count)
        elif needed and self._context.grow(self._slots.count + 2, True):
            self._slots.widen(self._slots.count + 2)

    def place(self, turns: Sequence[Turn]) -> Prompt | None:
        """Give sequences to first turns with a common prompt; the first gets its known part.

        Returns the prompt if it is completely known; ``share`` copies it. Raises ``LookupError`` when too few are
        free.
        """
        first = turns[0]
        prompt = self._prompts.get(first.key)
        source, tokens = (None, 0) if prompt else self._prefixes.find(first.family, first.blocks)
        slots = self._take(first.version.name, len(turns), source)
        for turn, slot in zip(turns, slots, strict=True):
            turn.conversation.slot = slot
            turn.conversation.version = turn.version
            turn.conversation.tokens = turn.prompt
        if source is not None and source != slots[0]:
            self._context.copy(source, slots[0], tokens)
        elif source is not None:
            self._prefixes.cut(source, 0)
            self._context.cut(source, tokens)
        return prompt

    def awaits(self, turn: Turn, other: Turn) -> bool:
        """True if a first turn will find more in memory once the prompt of ``other``, another first turn, is read."""
        if turn.family != other.family:
            return False
        ahead = common(turn.blocks, other.blocks)
        return ahead > 0 and ahead > self._prefixes.find(turn.family, turn.blocks)[1]

    def read(self, turn: Turn, logits: Logits) -> Prompt:
        sequence = turn.conversation.sequence
        prompt = Prompt(turn.key, logits.copy(), {sequence})
        self._prompts[prompt.key] = prompt
        self._prefixes.hold(sequence, turn.family, turn.blocks)
        return prompt

    def share(self, prompt: Prompt, turns: Sequence[Turn]) -> None:
        source = next(iter(prompt.holders))
        for turn in turns:
            sequence = turn.conversation.sequence
            if sequence not in prompt.holders:
                self._context.copy(source, sequence, len(turn.prompt))
                self._prefixes.hold(sequence, turns[0].family, turns[0].blocks)
                prompt.holders.add(sequence)
            turn.conversation.prompt = prompt

    def grow(self, turn: Turn) -> None:
        """A turn has ended: forks of its conversation may reuse its memory.

        Sampled tokens have other last bits than prefilled ones, so turns that are ``alike`` share only the prompt.
        """
        conversation = turn.conversation
        if conversation.slot is None or turn.alike:
            return
        held = conversation.tokens[: self._context.held[conversation.slot]]
        if len(held) >= self._prefixes.tokens(conversation.slot) + BLOCK:
            self._prefixes.hold(conversation.slot, turn.family, blocks_of(held, turn.alike))

    def empty(self, conversation: SequenceState) -> None:
        self._leave_prompt(conversation)
        self._prefixes.cut(conversation.sequence, 0)
        self._context.cut(conversation.sequence, 0)

    def end(self, conversation: SequenceState, intact: bool) -> None:
        version, sequence = conversation.version, conversation.slot
        if sequence is None or version is None:
            return
        begun = conversation.prompt.tokens if conversation.prompt else 0
        self._leave_prompt(conversation)
        self._prefixes.cut(sequence, begun)  # later text is useless to others
        if intact and not version.retired and self._prefixes.alone(sequence):
            self._keep(sequence, version.name)
        else:
            self._free(sequence)

    def retire(self, version: str) -> None:
        for sequence in [sequence for sequence, owner in self._kept.items() if owner == version]:
            self._give_up(sequence)

    def clear(self) -> None:
        for sequence in list(self._kept):
            self._give_up(sequence)

    def _take(self, version: str, count: int, source: int | None) -> list[int]:
        if source in self._kept:
            self._kept[source] = self._kept.pop(source)
        while self._slots.free < count and self._kept:
            oldest = next(iter(self._kept))
            if oldest == source:
                del self._kept[source]
                self._slots.give_back(source)
            else:
                self._give_up(oldest)
        taken = self._slots.take(version, count)
        return sorted(taken, key=lambda slot: slot != source)

    def _keep(self, sequence: int, version: str) -> None:
        for other in [other for other in self._kept if not self._prefixes.alone(other)]:
            self._give_up(other)
        if len(self._kept) >= max(1, self._slots.count // PART):
            self._give_up(next(iter(self._kept)))
        tokens, place = self._prefixes.tokens(sequence), self._slots.set_aside(sequence)
        if place != sequence:
            self._context.copy(sequence, place, tokens)
            self._prefixes.join(place, sequence)
            self._prefixes.cut(sequence, 0)
            self._context.cut(sequence, 0)
        else:
            self._context.cut(sequence, tokens)
        self._kept[place] = version

    def _give_up(self, sequence: int) -> None:
        del self._kept[sequence]
        self._free(sequence)

    def _free(self, sequence: int) -> None:
        self._prefixes.cut(sequence, 0)
        self._context.cut(sequence, 0)
        self._slots.give_back(sequence)

    def _leave_prompt(self, conversation: SequenceState) -> None:
        prompt, conversation.prompt = conversation.prompt, None
        if prompt is not None:
            prompt.holders.discard(conversation.sequence)
            if not prompt.holders and self._prompts.get(prompt.key) is prompt:
                del self._prompts[prompt.key]
