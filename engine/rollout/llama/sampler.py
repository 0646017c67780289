"""The worker class: the sampler protocol on llama.cpp, with the computation on a thread of its own.

Async methods put work into an inbox and wait for a future; the thread takes all that has come in, then makes one step
of the board, for as long as there is anything to do. Only that thread touches llama.cpp, and the event loop stays free.
"""

from __future__ import annotations

import asyncio
import logging
import queue
import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from ...base.gguf_base import ensure_base_gguf
from ...base.model import load_base
from ...errors import CallFailed
from ...types import Logprobs, Tokens
from ..protocol import SampleRequest, SampleResult, SamplerLimits, SamplerStats
from .answers import Answer, Answers
from .board import Board
from .context import LlamaContext
from .pace import pace_of
from .scoring import score
from .slots import Slots
from .versions import Versions

T = TypeVar("T")
Work = Callable[[], None]

SPARE = 2
"""Sequences kept for scoring, an aligned pair."""
MOST = 256 - SPARE
"""llama.cpp's own limit on sequences (LLAMA_MAX_SEQ), less the spare ones."""

log = logging.getLogger(__name__)


class LlamaSampler:
    """``protocol.Sampler`` on llama.cpp. Lives in a worker process, or in a test's own."""

    def __init__(
        self,
        base: str,
        cache: str,
        sequences: int = 128,
        context: int = 512,
        threads: int = 1,
        half: bool = False,
        exact: bool = False,
    ) -> None:
        """Load the base model called ``base``; its GGUF is kept in the folder ``cache``.

        ``sequences`` conversations (rounded up to an even number) of up to ``context`` tokens (llama.cpp rounds up to
        a multiple of 256) are held at once. ``half`` stores matrices as float16; ``exact`` keeps memory and attention
        in float32, up to twice as slow. Raises ``BaseModelError`` or ``ConfigError``.
        """
        model = load_base(base)
        count = min(max(sequences + sequences % 2, 2), MOST)
        length = min(context, model.config.context_length)
        path = ensure_base_gguf(model, Path(cache), half)
        self._context = LlamaContext(path, count + SPARE, length, threads, exact)
        self._versions = Versions(model, self._context)
        self._limits = SamplerLimits(self._context.sequences - SPARE, min(length, self._context.length))
        pace = pace_of(self._context.weights, exact)
        self._board = Board(self._context, self._versions, Slots(self._limits.sequences), self._limits.context, pace)
        self._answers = Answers()
        self._inbox: queue.SimpleQueue[Work | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="llama", daemon=True)
        self._thread.start()

    async def limits(self) -> SamplerLimits:
        """See the protocol."""
        return self._limits

    async def load(self, version: str, path: str) -> str:
        """See the protocol."""
        return await self._do(partial(self._versions.load, version, Path(path)))

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
        return await self._do(partial(self._score, version, tokens, start, temperature))

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

    async def _do(self, work: Callable[[], T]) -> T:
        """Run ``work`` on the thread between two steps and return its value."""
        answer: Answer[T] = Answer(self._answers)
        self._post(lambda: answer.give(work()), answer)
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
                self._board.step()
            except Exception as error:
                log.exception("The sampler's step failed.")
                self._board.fail(CallFailed(f"The sampler's step failed: {error}."))
            self._answers.flush()

    def _end(self) -> None:
        self._board.fail(CallFailed("The sampler is closing."))
        self._answers.flush()
        self._versions.close()
        self._context.close()
