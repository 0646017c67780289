"""A request that is sent again gets the answer of the first: a client that has lost its connection cannot know better.

Alike are requests of one key that name the same ``once`` and ask the same. While the first is under way, the second is
told what was sampled by then and goes on with it; for some minutes afterwards it gets a copy. A refusal is not kept.
"""

from __future__ import annotations

import asyncio
import hashlib
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

from msgspec import msgpack, structs

from ..gateway import Answered, Tell, wire

KEPT_SECONDS = 600.0
KEPT_BYTES = 64 << 20
"""Most bytes of all answers that are kept."""

Ask = Callable[[Tell], Awaitable[Answered]]


@dataclass
class _Shared:
    """A request that is answered for everybody who sends it."""

    pieces: list[wire.Piece] = field(default_factory=list)
    listeners: list[Tell] = field(default_factory=list)
    work: asyncio.Future[Answered] | None = None
    ended: float = 0.0
    size: int = 0

    def tell(self, piece: wire.Piece) -> None:
        """Tell all of a piece, and those who come later."""
        self.pieces.append(piece)
        for listener in self.listeners:
            listener(piece)


class Repeats:
    """Knows the requests under way that may come again, and the latest answers."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._running: dict[bytes, _Shared] = {}
        self._kept: OrderedDict[bytes, _Shared] = OrderedDict()
        self._bytes = 0

    async def answer(self, asked: wire.Chat | wire.Complete, ask: Ask, tell: Tell) -> Answered:
        """What ``ask`` returns, or has returned to a request like this. Raises what it raises.

        Cancelled, it ends the work unless somebody else waits for it.
        """
        if not asked.once:
            return await ask(tell)
        self._forget()
        which = _same(asked)
        shared = self._running.get(which) or self._kept.get(which)
        if shared is None:
            shared = self._begin(which, ask)
        assert shared.work is not None
        for piece in shared.pieces:
            tell(piece)
        shared.listeners.append(tell)
        try:
            return await asyncio.shield(shared.work)
        finally:
            shared.listeners.remove(tell)
            if not shared.listeners and not shared.work.done():
                self._running.pop(which, None)  # whoever asks from here on begins anew
                shared.work.cancel()

    def _begin(self, which: bytes, ask: Ask) -> _Shared:
        shared = self._running[which] = _Shared()

        def ended(work: asyncio.Future[Answered]) -> None:
            if self._running.get(which) is shared:
                del self._running[which]
            if not work.cancelled() and work.exception() is None:
                self._keep(which, shared, work.result())

        shared.work = asyncio.ensure_future(ask(shared.tell))
        shared.work.add_done_callback(ended)
        return shared

    def _keep(self, which: bytes, shared: _Shared, answered: Answered) -> None:
        shared.ended = self._clock()
        shared.size = len(msgpack.encode((answered, shared.pieces)))
        self._kept[which] = shared
        self._bytes += shared.size
        self._forget()

    def _forget(self) -> None:
        """Forget what is too old, and the oldest where they are too many bytes."""
        while self._kept:
            oldest = next(iter(self._kept.values()))
            if self._bytes <= KEPT_BYTES and oldest.ended + KEPT_SECONDS > self._clock():
                return
            self._kept.popitem(last=False)
            self._bytes -= oldest.size


def _same(asked: wire.Chat | wire.Complete) -> bytes:
    """Equal for requests that ask the same with the same key and the same ``once``."""
    return hashlib.sha256(msgpack.encode(structs.replace(asked, id=0))).digest()
