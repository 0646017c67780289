"""Episodes on a fake sampler: of environments, and of programs, whose requests come without HTTP."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from itertools import count
from types import SimpleNamespace
from typing import Any, cast

from marlaas.engine.environments.protocol import (
    EpisodeOutcome,
    EpisodeSpec,
    FinishedEpisode,
    Threads,
    endpoint_of,
)
from marlaas.engine.fairness.line import Ledger, Line as WaitingLine, Payer
from marlaas.engine.rollout.conversation import SamplingParameters
from marlaas.engine.rollout.episodes import EpisodeListener, PromptHash, Rollout, RunEnvironment
from marlaas.engine.rollout.renderer import Renderer
from marlaas.engine.rollout.slots import SamplerEndpoint, SamplerSlots
from marlaas.engine.rollout.spoken import Spoken
from marlaas.engine.samplers.protocol import Sampler
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
from marlaas.plugins.messages import Answer, Ask, Endpoint, Fork, Message as Said, Reply, ToolCall as Called

from .endpoints import alike
from .fake import FakeSampler, Witness
from .fake_renderer import FakeRenderer

SAMPLING = SamplingParameters("v1", 1, temperature=1.0, max_tokens=4, max_episode_tokens=10_000, seed=7)
SPEC = EpisodeSpec("train", 0, 0, 0)
PAYER = Payer("lab", 5)
LOOK = {"type": "function", "function": {"name": "look", "parameters": {"type": "object"}}}
"""A tool."""
numbers = count(1)


@dataclass
class Listening(EpisodeListener):
    """Remembers what it hears."""

    held_out: Callable[[PromptHash], bool] = lambda _: False
    on_end: Callable[[], None] = lambda: None
    cancelled: list[FinishedEpisode] = field(default_factory=list)

    def refuses(self, prompt: PromptHash) -> bool:
        return self.held_out(prompt)

    def on_last_turn(self) -> None:
        self.on_end()

    def on_cancelled(self, episode: FinishedEpisode) -> None:
        self.cancelled.append(episode)


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
    train: Threads = "all"
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
        wished = Wishes(**{"logprobs": True, **wishes})
        request = Chat(messages, tools, id=next(numbers), key=self.endpoint.key, model="any", wishes=wished, **given)
        return await self.answerer.answer(request, self.pieces.append)

    async def complete(self, *prompts: Any, echo: bool = False, stream: bool = False, **wishes: Any) -> Answered:
        """One call with plain prompts."""
        wished = Wishes(**{"logprobs": True, **wishes})
        request = Complete(
            prompts, echo, id=next(numbers), key=self.endpoint.key, model="any", wishes=wished, stream=stream
        )
        return await self.answerer.answer(request, self.pieces.append)

    async def refused(self, *messages: Message, **given: Any) -> Refusal:
        """The error of a call that fails."""
        try:
            answered = await self.chat(*messages, **given)
        except Refusal as refusal:
            return refusal
        raise AssertionError(f"it was answered: {answered}")


Program = Callable[[Line], Awaitable[None]]


@dataclass
class Stage:
    """A rollout on a sampler of few sequences."""

    sampler: Any = field(default_factory=Witness)
    deterministic: bool = False
    renderer: Any = field(default_factory=FakeRenderer)
    sampling: SamplingParameters = SAMPLING
    ledger: Ledger = field(default_factory=Ledger)
    addresses: Addresses | None = field(default_factory=Addresses)
    split: str = "train"
    agents: tuple[str, ...] = ()
    """Those that a program's environment declares."""
    train: Threads = "all"
    notes: list[str] = field(default_factory=list)
    """Lines for the task's log."""
    hearing: Hearing | None = None

    def __post_init__(self) -> None:
        line: WaitingLine[Any] = WaitingLine(lambda tenant: {"lab": 2.5}.get(tenant, 1.0))
        self.slots = SamplerSlots(self.sampler.sequences, line, patience=0.0)
        sampler = cast(Sampler, self.sampler)
        self.endpoint = SamplerEndpoint("rollout", "torch", sampler, self.sampler.context, self.slots)
        renderer, notes = cast(Renderer, self.renderer), self.notes
        rollout = Rollout(renderer, self.ledger, endpoints=self.addresses, tell=lambda _, text: notes.append(text))
        self.rollout = rollout.of(PAYER, self.deterministic)

    async def run(
        self,
        environment: RunEnvironment,
        spec: EpisodeSpec = SPEC,
        name: str = "e",
        listener: EpisodeListener | None = None,
    ) -> FinishedEpisode:
        """One episode of an environment."""
        roles = alike(self.sampling, self.endpoint)
        running = self.rollout.run_episode(environment, spec, roles, name, listener or Listening())
        return await asyncio.wait_for(running, 50)

    async def run_program(
        self, program: Program, rewards: Sequence[str] = ("agent",), refuse: Callable[[bytes], bool] = lambda _: False
    ) -> FinishedEpisode:
        """An episode that runs a program, and pays the agents."""

        async def environment(spec: EpisodeSpec, answer: Answer) -> EpisodeOutcome:
            hearing = self.hearing = Hearing(answer, self.agents, self.train)
            opened = await endpoint_of(answer)(hearing)
            assert self.addresses is not None
            await program(Line(opened, self.addresses.open_now[opened.key], hearing, answer))
            if hearing.errors:
                raise hearing.errors[0]
            return EpisodeOutcome("ok", dict.fromkeys(rewards, 1.0))

        return await self.run(environment, EpisodeSpec(cast(Any, self.split), 0, 0, 0), listener=Listening(refuse))

    async def nothing_is_left(self) -> bool:
        for _ in range(40):  # what is given up ends after the episode
            await asyncio.sleep(0)
        return not self.sampler.conversations and (self.slots.active, self.slots.waiting) == (0, 0)


def ask(text: str, agent: str = "agent", branch: int = 0, fork: Fork | None = None) -> Ask:
    return Ask(agent=agent, messages=(Said("user", text),), branch=branch, fork=fork)


FOLDED = FakeRenderer()


class Caller(FakeRenderer):
    """If there are tools, every third reply calls one."""

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


def program_stage(sampler: FakeSampler | None = None, **more: Any) -> Stage:
    """A stage whose model calls tools."""
    return Stage(sampler or Witness(), renderer=more.pop("renderer", None) or Caller(), **more)


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


def sampled(played: FinishedEpisode) -> list[list[int]]:
    """The sampled tokens of all replies."""
    return [t.tokens[s.start : s.stop].tolist() for t in played.episode.trajectories for s in t.spans]
