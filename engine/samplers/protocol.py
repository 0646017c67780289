"""The sampler protocol of every backend (llama.cpp, vLLM, a fake).

A sampler continues token ids under a named, immutable adapter version, and gives log-probabilities. It knows nothing
of tasks, rewards, text or the store. Each backend passes the suite in ``tests/engine/rollout/contract/whole.py``.

Options beyond training are set with ``request.wishing(Wishes(…))``, answered in ``result.extras``, and streamed with
``generate(request, stream_to=…)``.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Literal, Protocol

from ..trajectories import Logprobs, Tokens
from .options import Extras, Wishes
from .sampling import WHOLE, Truncation

Finish = Literal["stop", "length", "abort"]


@dataclass(frozen=True)
class SampleRequest:
    """One turn of one conversation."""

    conversation: str
    """The name of the cached earlier turns; freed by ``release``. The tokens may only grow between turns."""
    version: str
    tokens: Tokens
    """int32 (T,): the whole context, including earlier turns."""
    max_tokens: int
    """At most this many new tokens, 1 or more; fewer if the context is full. 0 if the wishes name the prompt."""
    temperature: float
    """0 is greedy. Log-probabilities are those of the distribution at this temperature (at 0: of temperature 1)."""
    stop: tuple[int, ...]
    """Token ids that end the turn; the one that ended it is part of the result."""
    seed: int
    """Unsigned 64 bits. The noise of the token at context position p depends only on (seed, p)."""
    account: str = ""
    """The payer: accounts share the sampler by weight. It affects the order of turns, never the results."""
    weight: float = 1.0
    """Weight of the account, above 0; the latest request of an account sets it."""
    truncation: Truncation = WHOLE
    """The tokens that may be drawn, with log-probabilities in the truncated distribution. Training uses all."""
    alike: bool = True
    """True if the last bits must not depend on other requests, for samplers that can do that. False may be faster.
    All turns of a conversation have the same value."""

    wishes: Wishes | None = None
    """Requested results besides the tokens; None as in training."""

    def wishing(self, wishes: Wishes) -> SampleRequest:
        return replace(self, wishes=wishes)

    def of(self, conversation: str, account: str, weight: float, alike: bool) -> SampleRequest:
        """The same for that account, under another name; several times as fast as ``dataclasses.replace``."""
        changed = {"conversation": conversation, "account": account, "weight": weight, "alike": alike}
        return SampleRequest(**self.__dict__ | changed)


@dataclass(frozen=True)
class SampleResult:
    """The sampled tokens, and the checksum of the adapter."""

    tokens: Tokens
    """int32 (N,), N >= 1 unless aborted or the context was full."""
    logprobs: Logprobs
    """float32 (N,)"""
    finish: Finish
    version: str
    checksum: str
    """Checksum of the adapter bytes that the sampler itself loaded under this name."""
    prefilled: int = 0
    """Context tokens computed for this turn; shared ones count for one turn only."""

    extras: Extras | None = None
    """The results of the request's wishes; None if it had none."""


@dataclass(frozen=True)
class NewTokens:
    """New tokens of a running turn."""

    tokens: Tokens
    """int32 (k,), k >= 1: those that were not streamed yet."""
    logprobs: Logprobs
    """float32 (k,)"""
    extras: Extras | None = None
    """Of these tokens, if the request has wishes."""


OnTokens = Callable[[NewTokens], None]
"""Called in the event loop, for each token once, in order, before ``generate`` returns; not after its caller was
cancelled. It must not raise."""


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
    """The sizes that fit into the allocated memory."""

    sequences: int
    context: int
    """Tokens of one conversation."""
    note: str = ""
    """Reductions from the requested sizes with their reason, in a sentence; may be empty."""


class Turns(Protocol):
    """The part of a sampler that a conversation uses."""

    async def generate(self, request: SampleRequest, *, stream_to: OnTokens | None = None) -> SampleResult:
        """Sample one turn. ``stream_to`` gets tokens while they are sampled, one or several at a time."""

    async def release(self, conversation: str) -> None:
        """Forget a conversation, and abort its request if one is in progress, before any later call is served.

        If the sampler is another process this returns at once and raises nothing.
        """


class Sampler(Turns, Protocol):
    """A backend. Methods may be called concurrently; all raise ``AdapterError`` or ``ValueError`` on bad input."""

    async def limits(self) -> SamplerLimits:
        """The number of conversations, and their most tokens."""

    async def load(self, version: str, path: str) -> str:
        """Read the adapter in the state file at ``path``, serve it under ``version``, return its checksum.

        A name stands for the same bytes for ever: other bytes are refused (``AdapterError``); the same ones are served
        again after ``retire``.
        """

    async def retire(self, version: str) -> None:
        """Free a version once its last request has ended; new requests for it are refused at once."""

    async def score(self, version: str, tokens: Tokens, start: int, temperature: float) -> Logprobs:
        """Log-probabilities, float32 (T-start,), of ``tokens[start:]`` under a version, for the canary."""

    async def stats(self) -> SamplerStats:
        """Totals for the screen."""
