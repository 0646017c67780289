"""One sampler with all that is the engine's of it: its name, its slots, and what it is to forget.

Live workers flow in, something to play episodes at flows out. Several of different kinds may stand side by side; an
episode has all its turns at one of them, because the memory of what was said is there.
"""

from __future__ import annotations

import asyncio
import contextlib
from dataclasses import dataclass, field

from ..devices import SamplerKind
from ..errors import MarlaasError
from .protocol import Sampler
from .slots import SamplerSlots


@dataclass(eq=False)
class SamplerEndpoint:
    """A sampler to play at."""

    name: str
    """Of its worker: ``rollout``, ``rollout-2``, …"""
    kind: SamplerKind
    sampler: Sampler
    context: int
    """Tokens of one conversation."""
    slots: SamplerSlots
    repeatable: bool = True
    """Whether it says the same to the last bit whatever else it is asked."""
    alike: str = ""
    """What it is and computes on: tokens take as long at all that say the same. Empty: it is like no other."""
    _ended: list[str] = field(default_factory=list)
    """Conversations that the sampler is to forget."""
    _forgetting: asyncio.Task[None] | None = None

    def forget(self, conversation: str) -> None:
        """Free a conversation's memory without waiting for it."""
        self._ended.append(conversation)
        if self._forgetting is None or self._forgetting.done():
            self._forgetting = asyncio.ensure_future(self._forget_all())

    async def _forget_all(self) -> None:
        """One task for all that ends in a turn of the loop."""
        while self._ended:
            with contextlib.suppress(MarlaasError):  # a sampler that is lost holds no memory, and others learn of it
                await self.sampler.release(self._ended.pop(0))
