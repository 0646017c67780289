"""A sampler without a model, for tests only: it keeps a ledger of which version's bytes served which conversation.

Its next-token distribution is a pure function of the adapter's checksum, the last two tokens and the position.
"""

from __future__ import annotations

import asyncio
import hashlib
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from marlaas.engine.adapters.statefile import checksum, read_state
from marlaas.engine.errors import AdapterError, ConfigError
from marlaas.engine.samplers.batching.turn import Wished, draw_wished
from marlaas.engine.samplers.protocol import (
    Finish,
    NewTokens,
    OnTokens,
    SampleRequest,
    SampleResult,
    SamplerLimits,
    SamplerStats,
)
from marlaas.engine.samplers.sampling import choose, likeliest, uniforms
from marlaas.engine.trajectories import Logprobs, Tokens

from .plain import logprobs_of


@dataclass(frozen=True)
class Entry:
    """One line of the ledger."""

    conversation: str
    version: str
    checksum: str
    start: int
    """Context position of the first sampled token."""
    sampled: int


@dataclass
class FakeVersion:
    checksum: str
    users: int = 0
    retired: bool = False


@dataclass
class FakeSampler:
    """``protocol.Sampler``, one token for each turn of the event loop."""

    vocabulary: int = 50
    sequences: int = 64
    context: int = 2048
    ledger: list[Entry] = field(default_factory=list)
    versions: dict[str, FakeVersion] = field(default_factory=dict)
    conversations: dict[str, Tokens] = field(default_factory=dict)
    running: set[str] = field(default_factory=set)
    aborted: set[str] = field(default_factory=set)
    sampled: int = 0
    most: int = 0
    """Turns that ran at the same time."""

    def __post_init__(self) -> None:
        self._slots = asyncio.Semaphore(self.sequences)

    async def limits(self) -> SamplerLimits:
        return SamplerLimits(self.sequences, self.context)

    async def load(self, version: str, path: str) -> str:
        found = checksum(read_state(Path(path), moments=False).adapter)
        if version in self.versions and self.versions[version].checksum != found:
            raise AdapterError(f"The version name {version!r} stands for other bytes.")
        self.versions[version] = FakeVersion(found)
        return found

    async def retire(self, version: str) -> None:
        self._serving(version).retired = True

    async def generate(self, request: SampleRequest, *, stream_to: OnTokens | None = None) -> SampleResult:
        version = self._serving(request.version)
        self._check(request)
        if request.conversation not in self.conversations:
            await self._slots.acquire()
        self.conversations[request.conversation] = request.tokens
        self.running.add(request.conversation)
        self.most = max(self.most, len(self.running))
        room = min(request.max_tokens, self.context - len(request.tokens))
        wished = self._wished(request, version.checksum)
        noise = uniforms(request.seed, len(request.tokens), len(request.tokens) + room)
        tokens, logprobs, finish = request.tokens, [], "length"
        for u in noise:
            await asyncio.sleep(0)
            if request.conversation in self.aborted:
                finish = "abort"
                break
            logits = self._logits(version.checksum, tokens)[None]
            temperature = np.array([request.temperature])
            given = logits, temperature, np.array([u]), [request.truncation]
            token, logprob = draw_wished(choose, [wished], *given)
            tokens = np.concatenate([tokens, token])
            logprobs.append(logprob[0])
            self.sampled += 1
            if stream_to is not None:
                stream_to(NewTokens(token, logprob, None if wished is None else wished.extras(len(logprobs) - 1)))
            if token[0] in request.stop:
                finish = "stop"
                break
        result = self._finish(request, tokens, logprobs, finish)  # type: ignore[arg-type]
        return result if wished is None else replace(result, extras=wished.extras())

    def _wished(self, request: SampleRequest, digest: str) -> Wished | None:
        wishes, tokens = request.wishes, request.tokens
        if wishes is None:
            return None
        wished = Wished(wishes)
        if wishes.prompt:
            logits = [self._logits(digest, tokens[:position]) for position in range(1, len(tokens))]
            given = np.array(logits, np.float32).reshape(-1, self.vocabulary)
            beside, _ = likeliest(given, np.full(len(given), request.temperature), wishes.likeliest)
            wished.prompt = logprobs_of(given, tokens[1:], request.temperature), beside
        return wished

    async def release(self, conversation: str) -> None:
        if conversation in self.running:
            self.aborted.add(conversation)
        if self.conversations.pop(conversation, None) is not None:
            self._slots.release()

    async def score(self, version: str, tokens: Tokens, start: int, temperature: float) -> Logprobs:
        digest = self._serving(version).checksum
        if not 1 <= start <= len(tokens):
            raise ValueError("start lies outside of the tokens.")
        logits = [self._logits(digest, tokens[:position]) for position in range(start, len(tokens))]
        return logprobs_of(np.array(logits).reshape(-1, self.vocabulary), tokens[start:], temperature)

    async def stats(self) -> SamplerStats:
        await asyncio.sleep(0)
        return SamplerStats(self.sampled, 0, 0.0, len(self.running), 0)

    def _finish(self, request: SampleRequest, tokens: Tokens, logprobs: list[float], finish: Finish) -> SampleResult:
        start = len(request.tokens)
        self.running.discard(request.conversation)
        self.aborted.discard(request.conversation)
        if request.conversation in self.conversations:
            self.conversations[request.conversation] = tokens
        digest = self.versions[request.version].checksum
        self.ledger.append(Entry(request.conversation, request.version, digest, start, len(tokens) - start))
        new = tokens[start:].astype(np.int32)
        return SampleResult(new, np.array(logprobs, np.float32), finish, request.version, digest)

    def _serving(self, name: str) -> FakeVersion:
        version = self.versions.get(name)
        if version is None or version.retired:
            raise AdapterError(f"The version {name!r} is not served.")
        return version

    def _check(self, request: SampleRequest) -> None:
        tokens, known = request.tokens, self.conversations.get(request.conversation, np.empty(0, np.int32))
        if request.conversation in self.running:
            raise ValueError("It is sampling already.")
        if not 1 <= len(tokens) <= self.context or tokens.min() < 0 or tokens.max() >= self.vocabulary:
            raise ValueError("The tokens do not fit.")
        wishes = request.wishes
        if wishes is not None and wishes.schema:
            raise ConfigError("It has no tokenizer for a schema.")
        if wishes is not None and wishes.problem():
            raise ValueError(wishes.problem())
        least = 0 if wishes is not None and wishes.prompt else 1
        if request.max_tokens < least or not 0 <= request.temperature < np.inf or not 0 <= request.seed < 2**64:
            raise ValueError("The request is out of range.")
        if not np.array_equal(tokens[: len(known)], known):
            raise ValueError("The conversation may only grow.")

    def _logits(self, digest: str, tokens: Tokens) -> NDArray[np.float32]:
        key = hashlib.sha256(f"{digest}{tokens[-2:].tolist()}{len(tokens)}".encode()).digest()
        random = np.random.Generator(np.random.Philox(key=int.from_bytes(key[:8], "little")))
        return (random.normal(size=self.vocabulary) * 2).astype(np.float32)


class Witness(FakeSampler):
    """Keeps the requests and the turns, and holds no more conversations than it has sequences."""

    def __init__(self, sequences: int = 2, context: int = 2048) -> None:
        super().__init__(sequences=sequences, context=context, versions={"v1": FakeVersion("sum")})
        self.requests: list[SampleRequest] = []
        self.turns: list[tuple[list[int], list[int]]] = []
        """The tokens before a reply and the reply, in the order in which replies ended."""

    async def generate(self, request: SampleRequest, *, stream_to: OnTokens | None = None) -> SampleResult:
        self.requests.append(request)
        result = await super().generate(request, stream_to=stream_to)
        assert len(self.conversations) <= self.sequences
        self.turns.append((request.tokens.tolist(), result.tokens.tolist()))
        return result
