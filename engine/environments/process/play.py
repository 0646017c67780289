"""An episode under way in a process, or another request, and how whoever answers hears of it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field

from marlaas.plugins.messages import Answer, Ask, Reply

from .wire import Outcome


@dataclass
class Play:
    """An episode under way, or another request."""

    answer: Answer | None
    """None where nothing may be asked."""
    outcomes: tuple[type, ...]
    """The types of outcome with which it may end."""
    ended: asyncio.Future[Outcome]
    began: float
    asks: set[asyncio.Task[None]] = field(default_factory=set)
    final: set[str] = field(default_factory=set)
    """Agents whose rewards are final."""


@dataclass(frozen=True)
class EpisodeListener:
    """Implements ``protocol.Listener`` for an episode under way."""

    play: Play
    ask: Answer
    agents: tuple[str, ...]
    tell: Callable[[str, int, int], None]

    async def answer(self, ask: Ask) -> Reply:
        """See the protocol."""
        return await self.ask(ask)

    def calls(self, agent: str, under_way: int, replies: int) -> None:
        """See the protocol."""
        if not self.play.ended.done():
            self.tell(agent, under_way, replies)

    def failed(self, error: BaseException) -> None:
        """See the protocol."""
        if not self.play.ended.done():
            self.play.ended.set_exception(error)
