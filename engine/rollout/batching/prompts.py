"""First prompts that some sequence still begins with: later episodes of a group copy their memory."""

from __future__ import annotations

from dataclasses import dataclass, field

from .context import Logits

Key = tuple[str, bool, bytes]
"""Version, whether the last bits are ``alike``, and tokens."""


@dataclass(eq=False)
class Prompt:
    """A prompt that has been computed, for as long as a sequence holds it."""

    key: Key
    logits: Logits
    """float32 (V,): what the first token is sampled from, a copy."""
    holders: set[int] = field(default_factory=set)
    """Sequences whose memory begins with it."""

    @property
    def tokens(self) -> int:
        """How many it has."""
        return len(self.key[2]) // 4  # int32


class Prompts:
    """All prompts that can be copied."""

    def __init__(self) -> None:
        self._prompts: dict[Key, Prompt] = {}

    def find(self, key: Key) -> Prompt | None:
        """The prompt of that key, if a sequence holds it."""
        return self._prompts.get(key)

    def add(self, prompt: Prompt) -> None:
        """Remember a prompt that has holders."""
        self._prompts[prompt.key] = prompt

    def leave(self, prompt: Prompt, sequence: int) -> None:
        """A sequence does not hold the prompt any more; after the last one it is forgotten."""
        prompt.holders.discard(sequence)
        if not prompt.holders and self._prompts.get(prompt.key) is prompt:
            del self._prompts[prompt.key]
