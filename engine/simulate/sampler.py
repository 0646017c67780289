"""A simulated sampler: conversations share passes, prompts are read in between, and replies have recorded lengths.

A pass over n conversations takes ``a_pass + n * row`` seconds and adds a token to each; reading delays all of them.
"""

from __future__ import annotations

import asyncio
import heapq
from collections import Counter
from contextvars import ContextVar
from itertools import count

import numpy as np

from ..errors import AdapterError
from ..rollout import Finish, OnTokens, SampleRequest, SampleResult, SamplerLimits, SamplerStats
from ..trajectories import Logprobs, Tokens
from .device import Device, Shared
from .layout import Site

REPLY: ContextVar[int] = ContextVar("reply")
"""Tokens of the requested reply, set by the code that draws the episode."""
STOP = 0
ENVELOPE = 512
"""Bytes of a call or an answer besides its arrays."""
NOTHING = 1e-9


class _Row:
    """A turn in progress: it ends when the sampler's count of tokens per conversation reaches ``end``."""

    __slots__ = ("begun", "end", "wait")

    def __init__(self, begun: float, end: float, wait: asyncio.Future[None]) -> None:
        self.begun = begun
        self.end = end
        self.wait = wait


class SimulatedSampler(Device):
    """``rollout.Sampler`` without a model."""

    def __init__(self, name: str, site: Site, shared: Shared) -> None:
        super().__init__(name, site, shared)
        rates, speed = shared.profile.sampler, site.speed
        self._pass, self._row = rates.a_pass / speed, rates.row / speed
        self._read, self._turn = rates.read / speed, rates.turn / speed
        self._around = rates.around
        self._publish = shared.profile.publish
        self._limits = SamplerLimits(site.sequences, site.context)
        self._versions: dict[str, str] = {}
        self._held: dict[str, tuple[int, tuple[str, bytes]]] = {}
        """Each conversation's remembered tokens, and the version and prompt of its beginning."""
        self._prompts: Counter[tuple[str, bytes]] = Counter()
        self._rows: list[tuple[float, int, _Row]] = []
        self._numbers = count()
        self._running: dict[str, _Row] = {}
        self._made = 0.0
        """Tokens added to each conversation in progress since the start."""
        self._debt = 0.0
        """Remaining seconds of reading."""
        self._loading = 0.0
        """Remaining seconds of loading versions, which delay the work and do not count as busy."""
        self._seen = self._loop.time()
        self._timer: asyncio.TimerHandle | None = None
        self._awake = False
        self._sampled = self._prefilled = 0
        self._busy = 0.0

    async def limits(self) -> SamplerLimits:
        return self._limits

    async def load(self, version: str, path: str) -> str:
        state = self._states.get(path)
        if self._states.first(self.node, state.checksum):
            await self.carry(state.size)
        self._advance()
        self._loading += self.draw(self._publish)
        self._arm()
        await self.rest(self._loading)
        self._versions[version] = state.checksum
        return state.checksum

    async def retire(self, version: str) -> None:
        self._versions.pop(version, None)

    async def generate(self, request: SampleRequest, *, stream_to: OnTokens | None = None) -> SampleResult:
        checksum = self._serving(request.version)
        context = len(request.tokens)
        await self.engine.ask()
        await self.carry(ENVELOPE + 4 * context)
        wanted = max(1, min(REPLY.get(request.max_tokens), request.max_tokens, self._limits.context - context))
        known, opened = self._held.get(request.conversation, (0, (request.version, b"")))
        if not known:
            opened = request.version, request.tokens.tobytes()
            known = context - 1 if self._prompts[opened] else 0
            self._prompts[opened] += 1
        read = context - known
        row = self._begin(self._turn + read * self._read, wanted)
        self._held[request.conversation] = context + wanted, opened
        self._running[request.conversation] = row
        try:
            await self.until(row.wait)
        finally:
            self._running.pop(request.conversation, None)
        made = wanted if row.end <= self._made + NOTHING else max(0, int(self._made - row.begun))
        self._sampled += made
        self._prefilled += read
        await self.rest(self.draw(self._around))
        await self.carry(ENVELOPE + 8 * made)
        self.engine.answer()
        tokens = np.ones(made, np.int32)
        tokens[:1] = 2 + self._random.getrandbits(16)
        ended = made == wanted
        if ended and wanted < request.max_tokens:
            tokens[-1] = STOP
        finish: Finish = "abort" if not ended else "stop" if wanted < request.max_tokens else "length"
        return SampleResult(tokens, np.zeros(made, np.float32), finish, request.version, checksum, read)

    async def release(self, conversation: str) -> None:
        held = self._held.pop(conversation, None)
        if held is not None:
            self._prompts[held[1]] -= 1
            if self._prompts[held[1]] <= 0:
                del self._prompts[held[1]]
        row = self._running.get(conversation)
        if row is not None and not row.wait.done():
            self._advance()
            row.wait.set_result(None)
            self._rows = [one for one in self._rows if one[2] is not row]
            heapq.heapify(self._rows)
            self._arm()

    async def score(self, version: str, tokens: Tokens, start: int, temperature: float) -> Logprobs:
        """All log-probabilities are 0, as the trainer's are."""
        self._serving(version)
        await self.carry(ENVELOPE + 4 * len(tokens))
        await self.until(self._begin(len(tokens) * self._read, 0).wait)
        await self.carry(ENVELOPE + 4 * len(tokens))
        return np.zeros(len(tokens) - start, np.float32)

    async def stats(self) -> SamplerStats:
        self._advance()
        return SamplerStats(self._sampled, self._prefilled, self._busy, len(self._rows), 0, int(self._made))

    def die(self) -> None:
        super().die()
        if self._timer is not None:
            self._timer.cancel()
        self._rows.clear()
        self._wakes()

    def _serving(self, version: str) -> str:
        if self.dead:
            raise self.death()
        if version not in self._versions:
            raise AdapterError(f"The version {version!r} is not served.")
        return self._versions[version]

    def _begin(self, reading: float, wanted: int) -> _Row:
        if self.dead:
            raise self.death()
        self._advance()
        self._debt += reading
        row = _Row(self._made, self._made + wanted, self._loop.create_future())
        heapq.heappush(self._rows, (row.end, next(self._numbers), row))
        self._arm()
        return row

    def _advance(self) -> None:
        now = self._loop.time()
        passed, self._seen = now - self._seen, now
        loaded = min(passed, self._loading)
        self._loading -= loaded
        passed -= loaded
        read = min(passed, self._debt)
        self._debt -= read
        self._busy += read
        passed -= read
        while self._rows and self._debt <= NOTHING:
            each = self._pass + len(self._rows) * self._row
            left = max(0.0, self._rows[0][0] - self._made)
            if each * left > passed + NOTHING:
                self._made += passed / each
                self._busy += passed
                return
            self._made = max(self._made, self._rows[0][0])
            self._busy += each * left
            passed = max(0.0, passed - each * left)
            self._end_first()

    def _end_first(self) -> None:
        row = heapq.heappop(self._rows)[2]
        if not row.wait.done():
            row.wait.set_result(None)

    def _arm(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._rows:
            left = max(0.0, self._rows[0][0] - self._made)
            each = self._pass + len(self._rows) * self._row
            self._timer = self._loop.call_later(self._loading + self._debt + left * each, self._wake)
        self._wakes()

    def _wakes(self) -> None:
        if self._awake != bool(self._rows):
            self._awake = bool(self._rows)
            self.cores.wake(self.threads if self._awake else -self.threads)

    def _wake(self) -> None:
        self._timer = None
        self._advance()
        self._arm()
