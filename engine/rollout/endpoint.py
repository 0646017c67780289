"""The sampler endpoint: one sampler with its name, its slots, and the conversations that it is to forget.

Several of different kinds may exist side by side. What a conversation has said is remembered by one of them at a time.
"""

from __future__ import annotations

import asyncio
import contextlib
from dataclasses import dataclass, field

from ..devices import SamplerKind
from ..errors import MarlaasError
from .backlog import Backlog
from .protocol import Sampler
from .slots import SamplerSlots


@dataclass(eq=False)
class SamplerEndpoint:
    """A sampler at which episodes are played."""

    name: str
    """Name of its worker: ``rollout``, ``rollout-2``, …"""
    kind: SamplerKind
    sampler: Sampler
    context: int
    """Tokens of one conversation."""
    slots: SamplerSlots
    repeatable: bool = True
    """Whether it gives the same result to the last bit, whatever else it is asked."""
    alike: str = ""
    """Its kind and device, in words: tokens cost the same at all endpoints with equal words. Empty: like no other."""
    backlog: Backlog = field(default_factory=Backlog)
    """What waits there and is under way."""
    lost: bool = False
    """Whether its worker has died: for good, since a successor has an endpoint of its own."""
    _ended: list[str] = field(default_factory=list)
    """Conversations that the sampler is to forget."""
    _forgetting: asyncio.Task[None] | None = None

    def forget(self, conversation: str) -> None:
        """Free a conversation's memory without waiting for it."""
        self._ended.append(conversation)
        if self._forgetting is None or self._forgetting.done():
            self._forgetting = asyncio.ensure_future(self._forget_all())

    async def _forget_all(self) -> None:
        """Release all ended conversations, in one task for all that end in a turn of the event loop."""
        while self._ended:
            with contextlib.suppress(MarlaasError):  # a lost sampler holds no memory, and others report it
                await self.sampler.release(self._ended.pop(0))
