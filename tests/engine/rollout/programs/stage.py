"""An episode whose programs call the model without HTTP: what the gateway would ask, asked directly."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from itertools import count
from types import SimpleNamespace
from typing import Any, cast

from marlaas.engine.environments.protocol import EpisodeOutcome, EpisodeSpec, FinishedEpisode, endpoint_of
from marlaas.engine.fairness.line import Ledger
from marlaas.engine.rollout.conversation import SamplingParameters
from marlaas.engine.rollout.episodes import Rollout, alike
from marlaas.engine.rollout.renderer import Renderer
from marlaas.engine.rollout.spoken import Spoken
from marlaas.engine.samplers.protocol import OnTokens, SampleRequest, SampleResult
from marlaas.engine.wire import (
    Address,
    Answered,
    Answerer,
    Chat,
    Complete,
    Message,
    Piece,
    Refusal,
    ToolCall,
    Wishes,
)
from marlaas.plugins.messages import Answer, Ask, Endpoint, Message as Said, Reply, ToolCall as Called

from ..endpoints import endpoint
from ..fake import FakeSampler, FakeVersion
from ..fake_renderer import FakeRenderer
from ..listening import Listening

SAMPLING = SamplingParameters("v1", 1, temperature=1.0, max_tokens=4, max_episode_tokens=10_000, seed=7)
LOOK = {"type": "function", "function": {"name": "look", "parameters": {"type": "object"}}}
"""A tool."""
numbers = count(1)


FOLDED = FakeRenderer()


class Caller(FakeRenderer):
    """Where there are tools, every third reply calls one."""

    thinks = False
    vocabulary = SimpleNamespace(
        decode=lambda tokens: " ".join(map(str, tokens)),
        encode=lambda text: FOLDED.open([Said("user", text)]),
        longest=1,
    )

    def plain(self, tokens: Sequence[int]) -> Spoken:
        text = " ".join(map(str, tokens))
        return Spoken(tuple(tokens), text, (), text, ended=tokens[-1] in self.stop_ids)

    def parse(self, tokens: Sequence[int], prompt: Sequence[int] = (), tools: bool = False) -> Spoken:
        spoken = super().parse(tokens, prompt, tools)
        if not tools or sum(tokens) % 3:
            return spoken
        calls = tuple(Called("look", {"at": [*tokens], "by": "x"}) for _ in tokens[:2])
        return Spoken(spoken.tokens, "", calls, spoken.shown)


class Witness(FakeSampler):
    """Keeps what it was asked and what it said."""

    def __init__(self, sequences: int = 2, context: int = 2048) -> None:
        super().__init__(sequences=sequences, context=context, versions={"v1": FakeVersion("sum")})
        self.turns: list[tuple[list[int], list[int]]] = []
        self.requests: list[SampleRequest] = []

    async def generate(self, request: SampleRequest, *, stream_to: OnTokens | None = None) -> SampleResult:
        self.requests.append(request)
        result = await super().generate(request, stream_to=stream_to)
        self.turns.append((request.tokens.tolist(), result.tokens.tolist()))
        return result


@dataclass
class Addresses:
    """Implements ``gateway.Endpoints``."""

    open_now: dict[str, Answerer] = field(default_factory=dict)
    given: int = 0

    async def open(self, answerer: Answerer) -> Address:
        self.given += 1
        address = Address("http://127.0.0.1:1", f"key-{self.given}")
        self.open_now[address.key] = answerer
        return address

    def close(self, address: Address) -> None:
        del self.open_now[address.key]


@dataclass
class Hearing:
    """Implements ``protocol.Listener`` as a process of a plugin does."""

    ask: Answer
    agents: tuple[str, ...] = ()
    heard: list[tuple[str, int, int]] = field(default_factory=list)
    errors: list[BaseException] = field(default_factory=list)

    async def answer(self, ask: Ask) -> Reply:
        return await self.ask(ask)

    def calls(self, agent: str, under_way: int, replies: int) -> None:
        self.heard.append((agent, under_way, replies))

    def failed(self, error: BaseException) -> None:
        self.errors.append(error)


@dataclass
class Line:
    """What a program does: speaks to one episode."""

    endpoint: Endpoint
    answerer: Answerer
    hearing: Hearing
    ask: Answer
    pieces: list[Piece] = field(default_factory=list)

    async def chat(self, *messages: Message, **given: Any) -> Answered:
        """One call; ``given`` are fields of the request or wishes."""
        wishes = {name: given.pop(name) for name in list(given) if name in Wishes.__struct_fields__}
        tools = given.pop("tools", ())
        request = Chat(
            next(numbers), self.endpoint.key, "any", messages, tools, Wishes(**{"logprobs": True, **wishes}), **given
        )
        return await self.answerer.answer(request, self.pieces.append)

    async def complete(self, *prompts: Any, echo: bool = False, stream: bool = False, **wishes: Any) -> Answered:
        """One call with plain prompts."""
        wished = Wishes(**{"logprobs": True, **wishes})
        request = Complete(next(numbers), self.endpoint.key, "any", prompts, wished, echo, stream)
        return await self.answerer.answer(request, self.pieces.append)

    async def refused(self, *messages: Message, **given: Any) -> Refusal:
        """The error of a call that fails."""
        try:
            answered = await self.chat(*messages, **given)
        except Refusal as refusal:
            return refusal
        raise AssertionError(f"it was answered: {answered}")


@dataclass
class Stage:
    """Episodes on a fake sampler."""

    sampler: Witness = field(default_factory=Witness)
    renderer: Caller = field(default_factory=Caller)
    addresses: Addresses | None = field(default_factory=Addresses)
    sampling: SamplingParameters = SAMPLING
    split: str = "train"
    agents: tuple[str, ...] = ()
    refuse: Callable[[bytes], bool] = lambda _: False
    told: list[str] = field(default_factory=list)
    hearing: Hearing | None = None

    async def play(
        self, program: Callable[[Line], Awaitable[None]], rewards: Sequence[str] = ("agent",)
    ) -> FinishedEpisode:
        """An episode that runs a program, and pays the agents."""
        place = endpoint(self.sampler, self.sampler.sequences, self.sampler.context)
        rollout = Rollout(
            cast(Renderer, self.renderer),
            Ledger(),
            endpoints=self.addresses,
            tell=lambda task, sentence: self.told.append(sentence),
        )

        async def environment(spec: EpisodeSpec, answer: Answer) -> EpisodeOutcome:
            hearing = self.hearing = Hearing(answer, self.agents)
            opened = await endpoint_of(answer)(hearing)
            assert self.addresses is not None
            await program(Line(opened, self.addresses.open_now[opened.key], hearing, answer))
            if hearing.errors:
                raise hearing.errors[0]
            return EpisodeOutcome("ok", dict.fromkeys(rewards, 1.0))

        spec = EpisodeSpec(cast(Any, self.split), 0, 0, 0)
        return await rollout.run_episode(environment, spec, alike(self.sampling, place), "e", Listening(self.refuse))


def user(text: str) -> Message:
    return Message("user", text)


def system(text: str) -> Message:
    return Message("system", text)


def heard(answered: Answered, choice: int = 0) -> Message:
    """A choice as clients send it back: without its thought, with JSON in a spelling of their own."""
    said = answered.choices[choice]
    calls = tuple(
        ToolCall(call.id, call.name, json.dumps(dict(reversed(json.loads(call.arguments).items())), indent=1))
        for call in said.tool_calls
    )
    return Message("assistant", said.text, tool_calls=calls)


def results(message: Message) -> list[Message]:
    """Results for the calls of a reply."""
    return [Message("tool", f"seen {call.arguments}", tool_call_id=call.id) for call in message.tool_calls]


def ids(answered: Answered, choice: int = 0) -> list[int]:
    """The tokens that a client was told."""
    return [token.id for token in answered.choices[choice].tokens]


def spans(played: FinishedEpisode) -> list[int]:
    """How many replies each trajectory has."""
    return [len(trajectory.spans) for trajectory in played.episode.trajectories]


def told(played: FinishedEpisode) -> list[list[int]]:
    """The sampled tokens of all replies."""
    return [t.tokens[s.start : s.stop].tolist() for t in played.episode.trajectories for s in t.spans]
