"""The worker class: the sampler protocol over a context, with the computation on a thread of its own.

Async methods put work into an inbox and wait for a future; the thread takes all that has come in, then makes one step
of the board, for as long as there is anything to do. A step ends early where somebody waits for more than a turn: a
task makes no step until its version is loaded and scored. Only that thread touches the context, and the event loop
stays free.
"""

from __future__ import annotations

import asyncio
import logging
import queue
import threading
from collections import deque
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from ...base.model import BaseModel
from ...errors import CallFailed
from ...types import Logprobs, Tokens
from ..protocol import SampleRequest, SampleResult, SamplerLimits, SamplerStats
from .answers import Answer, Answers
from .board import Board
from .context import Context
from .pace import Pace
from .scoring import score
from .slots import Slots
from .versions import Versions

T = TypeVar("T")
Work = Callable[[], None]

SPARE = 2
"""Sequences kept for scoring, an aligned pair."""

log = logging.getLogger(__name__)


class BatchingSampler:
    """``protocol.Sampler`` on a context. Lives in a worker process, or in a test's own."""

    def __init__(self, base: BaseModel, context: Context, length: int, pace: Pace) -> None:
        """Serve ``base`` from ``context``, whose conversations may grow to ``length`` tokens."""
        self._context = context
        self._versions = Versions(base, context)
        self._limits = SamplerLimits(context.sequences - SPARE, min(length, context.length))
        self._board = Board(context, self._versions, Slots(self._limits.sequences), self._limits.context, pace)
        self._answers = Answers()
        self._inbox: queue.SimpleQueue[Work | None] = queue.SimpleQueue()
        self._pressing: deque[None] = deque()
        """One for each thing in the inbox for which a step of the board ends early; both threads use it."""
        self._thread = threading.Thread(target=self._run, name="sampler", daemon=True)
        self._thread.start()

    async def limits(self) -> SamplerLimits:
        """See the protocol."""
        return self._limits

    async def load(self, version: str, path: str) -> str:
        """See the protocol."""
        return await self._do(partial(self._versions.load, version, Path(path)), pressing=True)

    async def retire(self, version: str) -> None:
        """See the protocol."""
        await self._do(partial(self._versions.retire, version))

    async def generate(self, request: SampleRequest) -> SampleResult:
        """See the protocol. A cancelled caller's turn goes on until it ends or its conversation is released."""
        answer: Answer[SampleResult] = Answer(self._answers)
        self._post(partial(self._board.submit, request, answer), answer)
        return await answer.future

    async def release(self, conversation: str) -> None:
        """See the protocol."""
        await self._do(partial(self._board.release, conversation))

    async def score(self, version: str, tokens: Tokens, start: int, temperature: float) -> Logprobs:
        """See the protocol."""
        return await self._do(partial(self._score, version, tokens, start, temperature), pressing=True)

    async def stats(self) -> SamplerStats:
        """See the protocol."""
        return await self._do(self._board.stats)

    async def close(self) -> None:
        """End the thread, failing what is under way, and give the memory back."""
        self._inbox.put(None)
        await asyncio.to_thread(self._thread.join)

    def _score(self, version: str, tokens: Tokens, start: int, temperature: float) -> Logprobs:
        handle = self._versions.serving(version).handle
        return score(self._context, handle, self._limits.sequences, tokens, start, temperature)

    async def _do(self, work: Callable[[], T], pressing: bool = False) -> T:
        """Run ``work`` on the thread between two steps and return its value."""
        answer: Answer[T] = Answer(self._answers)

        def begun() -> None:
            if pressing:
                self._pressing.pop()
            answer.give(work())

        if pressing:
            self._pressing.append(None)
        self._post(begun, answer)
        return await answer.future

    def _post(self, work: Work, answer: Answer[Any]) -> None:
        def guarded() -> None:
            try:
                work()
            except Exception as error:
                answer.fail(error)

        self._inbox.put(guarded)

    def _run(self) -> None:
        while True:
            while not self._board.busy or not self._inbox.empty():
                if self._inbox.empty():
                    self._answers.flush()
                work = self._inbox.get()
                if work is None:
                    self._end()
                    return
                work()
            try:
                self._board.step(self._pressed)
            except Exception as error:
                log.exception("The sampler's step failed.")
                self._board.fail(CallFailed(f"The sampler's step failed: {error}."))
            self._answers.flush()

    def _pressed(self) -> bool:
        return bool(self._pressing)

    def _end(self) -> None:
        self._board.fail(CallFailed("The sampler is closing."))
        self._answers.flush()
        self._versions.close()
        self._context.close()
