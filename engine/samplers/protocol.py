"""The sampler protocol of every backend (llama.cpp, torch, vLLM, a fake).

A sampler continues token ids under a named, immutable adapter version. It knows no tasks, rewards, text or store. Each
passes ``tests/engine/rollout/contract/whole.py``.

``request.wishing(Wishes(…))`` sets other options, answered in ``result.extras``; ``generate(request, stream_to=…)``
streams.
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
    """Names cached earlier turns; freed by ``release``. Tokens may only grow."""
    version: str
    tokens: Tokens
    """int32 (T,): the whole context, including earlier turns."""
    max_tokens: int
    """1 or more; fewer if the context is full. 0 if the wishes name the prompt."""
    temperature: float
    """0 is greedy. Log-probabilities are at this temperature (at 0: at temperature 1)."""
    stop: tuple[int, ...]
    """End the turn; the result includes the one that did."""
    seed: int
    """Unsigned 64 bits. Noise at context position p depends only on (seed, p)."""
    account: str = ""
    """Accounts share the sampler by weight; it affects only the order of turns."""
    weight: float = 1.0
    """Above 0; the latest request sets it."""
    truncation: Truncation = WHOLE
    """Log-probabilities are of the truncated distribution. Training uses all."""
    alike: bool = True
    """The last bits must not depend on other requests, if the sampler can. False may be faster. One value per
    conversation."""

    wishes: Wishes | None = None
    """None as in training."""

    def wishing(self, wishes: Wishes) -> SampleRequest:
        return replace(self, wishes=wishes)

    def of(self, conversation: str, account: str, weight: float, alike: bool) -> SampleRequest:
        """Several times as fast as ``dataclasses.replace``."""
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
    """Of the bytes that the sampler itself loaded."""
    prefilled: int = 0
    """Context tokens computed; shared ones count for one turn only."""

    extras: Extras | None = None


@dataclass(frozen=True)
class NewTokens:
    """New tokens of a running turn."""

    tokens: Tokens
    """int32 (k,), k >= 1"""
    logprobs: Logprobs
    """float32 (k,)"""
    extras: Extras | None = None


OnTokens = Callable[[NewTokens], None]
"""In the event loop, once per token, in order, before ``generate`` returns; not after cancellation. Must not raise."""


@dataclass(frozen=True)
class SamplerStats:
    """Totals since the worker started."""

    sampled_tokens: int
    prefilled_tokens: int
    busy_seconds: float
    active: int
    waiting: int
    passes: int = 0
    """Each for one token of all its conversations."""


@dataclass(frozen=True)
class SamplerLimits:
    """The sizes that fit into the allocated memory."""

    sequences: int
    context: int
    """Tokens of one conversation."""
    note: str = ""
    """Reductions from the requested sizes, with reasons; may be empty."""


class Turns(Protocol):
    """The part of a sampler that a conversation uses."""

    async def generate(self, request: SampleRequest, *, stream_to: OnTokens | None = None) -> SampleResult:
        """Sample one turn. ``stream_to`` gets tokens meanwhile."""

    async def release(self, conversation: str) -> None:
        """Forget a conversation, and abort its request, before any later call is served.

        To another process it returns at once and raises nothing.
        """


class Sampler(Turns, Protocol):
    """A backend. Methods may run concurrently; all raise ``AdapterError`` or ``ValueError`` on bad input."""

    async def limits(self) -> SamplerLimits:
        """The number of conversations, and their most tokens."""

    async def load(self, version: str, path: str) -> str:
        """Serve the state file ``path`` as ``version``; returns its checksum.

        Raises ``AdapterError`` if the name has had other bytes; the same ones are served again after ``retire``.
        """

    async def retire(self, version: str) -> None:
        """Free a version after its last request; refuses new requests at once."""

    async def score(self, version: str, tokens: Tokens, start: int, temperature: float) -> Logprobs:
        """Log-probabilities, float32 (T-start,), of ``tokens[start:]``."""

    async def stats(self) -> SamplerStats:
        """Totals for the screen."""
