"""The sampler protocol: what every backend (llama.cpp, vLLM, a fake) promises to the engine.

A sampler continues token ids under a named, immutable adapter version, and gives log-probabilities. It knows nothing of
tasks, rewards, text or the store. ``tests/engine/rollout/contract/whole.py`` holds the suite that each backend passes.

What clients want beyond training is asked for with ``request.wishing(Wishes(…))``, answered in ``result.extras``, and
streamed with ``generate(request, stream_to=…)``. Requests and results without it are smaller than with empty fields.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, Protocol

from ..trajectories import Logprobs, Tokens
from .sampling import WHOLE, Truncation
from .wishes import NONE, Extras, Wishes

Finish = Literal["stop", "length", "abort"]


@dataclass(frozen=True)
class SampleRequest:
    """One turn of one conversation."""

    conversation: str
    """Where the KV memory of earlier turns is kept; freed by ``release``. The tokens may only grow between turns."""
    version: str
    """Name of a loaded adapter version."""
    tokens: Tokens
    """int32 (T,): the whole context, earlier turns included."""
    max_tokens: int
    """At most this many new tokens, 1 or more; fewer where the context is full. 0 if the wishes name the prompt."""
    temperature: float
    """0 is greedy. Log-probabilities are those of the distribution at this temperature (at 0: of temperature 1)."""
    stop: tuple[int, ...]
    """Token ids that end the turn; the one that ended it is part of the result."""
    seed: int
    """Unsigned 64 bits. The noise of the token at context position p depends on (seed, p) alone."""
    account: str = ""
    """Who pays: accounts share the sampler by weight. It decides the order of turns, never what is sampled."""
    weight: float = 1.0
    """Weight of the account, above 0; the latest request of an account sets it."""
    truncation: Truncation = WHOLE
    """Which tokens may be drawn; log-probabilities are then those of what is left. Training draws from all."""
    alike: bool = True
    """Whether the last bits of what is sampled must be the same whatever else is asked, of a sampler that can do that.
    If they need not be, some are faster. All turns of a conversation say the same."""

    @property
    def wishes(self) -> Wishes | None:
        """What is wanted beside the tokens; None: nothing, as in training."""
        return None

    def wishing(self, wishes: Wishes) -> WishfulRequest:
        """The same with these wishes."""
        return WishfulRequest(**self.__dict__ | {"wishes": wishes})

    def of(self, conversation: str, account: str, weight: float, alike: bool) -> SampleRequest:
        """The same of that account, under another name; several times as fast as ``dataclasses.replace``."""
        return SampleRequest(
            conversation,
            self.version,
            self.tokens,
            self.max_tokens,
            self.temperature,
            self.stop,
            self.seed,
            account,
            weight,
            self.truncation,
            alike,
        )


@dataclass(frozen=True)
class WishfulRequest(SampleRequest):
    """A request with wishes, which ``dataclasses.replace`` keeps; ``SampleRequest.wishing`` makes one."""

    wishes: Wishes = NONE

    def of(self, conversation: str, account: str, weight: float, alike: bool) -> SampleRequest:
        """See ``SampleRequest``."""
        return super().of(conversation, account, weight, alike).wishing(self.wishes)


@dataclass(frozen=True)
class SampleResult:
    """What was sampled, and by exactly which adapter bytes."""

    tokens: Tokens
    """int32 (N,), N >= 1 unless aborted or the context was full."""
    logprobs: Logprobs
    """float32 (N,)"""
    finish: Finish
    version: str
    checksum: str
    """Checksum of the adapter bytes that the sampler itself loaded under this name."""
    prefilled: int = 0
    """Tokens of the context that were computed for this turn; what prompts share counts for one turn alone."""

    @property
    def extras(self) -> Extras | None:
        """What the request's wishes have brought; None if it had none."""
        return None


@dataclass(frozen=True)
class WishedResult(SampleResult):
    """The result of a ``WishfulRequest``."""

    extras: Extras | None = None


@dataclass(frozen=True)
class NewTokens:
    """Tokens of a turn that has not ended, as they were sampled."""

    tokens: Tokens
    """int32 (k,), k >= 1: those that were not streamed yet."""
    logprobs: Logprobs
    """float32 (k,)"""
    extras: Extras | None = None
    """Of these tokens, if the request has wishes."""


OnTokens = Callable[[NewTokens], None]
"""Is called in the event loop, for each token once, in their order, before ``generate`` returns; not after its caller
was cancelled. It must not raise."""


@dataclass(frozen=True)
class SamplerStats:
    """Totals since the worker started."""

    sampled_tokens: int
    prefilled_tokens: int
    busy_seconds: float
    active: int
    waiting: int
    passes: int = 0
    """Passes over the base that each sampled one token for all conversations in it."""


@dataclass(frozen=True)
class SamplerLimits:
    """What fits into the memory that was really allocated."""

    sequences: int
    """Conversations held at the same time."""
    context: int
    """Tokens of one conversation."""
    note: str = ""
    """What is smaller than was asked for, and why, in a sentence for people; empty if nothing is."""


class Turns(Protocol):
    """The part of a sampler that a conversation uses."""

    async def generate(self, request: SampleRequest, *, stream_to: OnTokens | None = None) -> SampleResult:
        """Sample one turn; returns when it has ended. ``stream_to`` gets tokens as they are sampled, from the first
        one on; each time perhaps several."""

    async def release(self, conversation: str) -> None:
        """Forget a conversation, aborting its request if one is in progress, before any later call is served.

        Where the sampler is another process this returns at once and raises nothing.
        """


class Sampler(Turns, Protocol):
    """A backend. Methods may be called concurrently; all raise ``AdapterError`` or ``ValueError`` on bad input."""

    async def limits(self) -> SamplerLimits:
        """How many conversations, and how long each may grow."""

    async def load(self, version: str, path: str) -> str:
        """Read the adapter in the state file at ``path``, serve it under ``version``, return its checksum.

        A name stands for the same bytes for ever: with other bytes it is refused (``AdapterError``); with the same ones
        it is served again after ``retire``.
        """

    async def retire(self, version: str) -> None:
        """Free a version once its last request has ended; new requests for it are refused at once."""

    async def score(self, version: str, tokens: Tokens, start: int, temperature: float) -> Logprobs:
        """Log-probabilities, float32 (T-start,), of ``tokens[start:]`` under a version; the canary asks for them."""

    async def stats(self) -> SamplerStats:
        """Totals for the screen."""
