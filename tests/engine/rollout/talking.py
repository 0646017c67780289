"""A conversation with a real renderer and a model that says what a test tells it to, id for id."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from marlaas.engine.rollout.conversation import Allowance, Conversation, SamplingParameters
from marlaas.engine.rollout.renderer import Renderer, Rendering
from marlaas.engine.samplers.protocol import NewTokens, OnTokens, SampleRequest, SampleResult
from marlaas.plugins.messages import Ask, Message, Reply

from .fake import FakeSampler

FAMILIES = ("qwen2", "qwen2.5", "qwen3", "llama3")
DEEP = """\
{{- bos_token }}
{%- for message in messages %}
    {%- if message.role == 'assistant' %}
        {%- set content = message.content %}
        {%- if '</think>' in content %}{% set content = content.split('</think>')[-1] %}{% endif %}
        {{- '<|im_start|>' + content + '<|im_end|>' }}
    {%- else %}
        {{- '[' + message.role + ']' + message.content }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{ '<|im_start|><think>\\n' }}{% endif %}
"""
"""A template that begins every thought itself, keeps no thought, and keeps the space behind it."""


class Parrot(FakeSampler):
    """Says the given ids, as many as there is room for."""

    def __init__(self, context: int) -> None:
        super().__init__(sequences=4, context=context)
        self.saying: list[int] = []
        self.requests: list[SampleRequest] = []
        self.released: list[str] = []
        self.at_once = 1
        """Tokens that are streamed together."""

    async def generate(self, request: SampleRequest, *, stream_to: OnTokens | None = None) -> SampleResult:
        self.requests.append(request)
        said = self.saying[: request.max_tokens]
        finish = "stop" if said and said[-1] in request.stop else "length"
        ids, logprobs = np.array(said, np.int32), -np.arange(1.0, len(said) + 1, dtype=np.float32)
        for begin in range(0, len(said), self.at_once) if stream_to is not None else ():
            some = slice(begin, begin + self.at_once)
            stream_to(NewTokens(ids[some], logprobs[some]))  # type: ignore[misc]
            await asyncio.sleep(0)
        return SampleResult(ids, logprobs, finish, request.version, "sum")  # type: ignore[arg-type]

    async def release(self, conversation: str) -> None:
        self.released.append(conversation)


class Talk:
    """One agent's conversation, turn by turn."""

    def __init__(self, renderer: Renderer, thinking: bool | None = None, tokens: int = 10_000, **sampling: Any) -> None:
        self.renderer, self.rendering = renderer, Rendering(renderer)
        self.sampler = Parrot(context=sampling.pop("context", 20_000))
        said = SamplingParameters("v1", 1, 1.0, tokens, sampling.pop("episode", 100_000), seed=5, thinking=thinking)
        allowance = Allowance(said.max_episode_tokens)
        self.conversation = Conversation("e/0", "agent", said, self.sampler.context, 5, allowance)

    async def say(
        self,
        news: str | Sequence[Message],
        reply: Sequence[int],
        tools: tuple[Any, ...] = (),
        stop: tuple[str, ...] = (),
    ) -> Reply:
        """Say something to the model, which answers with these ids."""
        self.sampler.saying = list(reply)
        messages = (Message("user", news),) if isinstance(news, str) else tuple(news)
        return await self.conversation.answer(Ask("agent", messages, tools, stop=stop), self.sampler, self.rendering)

    @property
    def prompts(self) -> list[list[int]]:
        """What the model was given, turn by turn."""
        return [request.tokens.tolist() for request in self.sampler.requests]

    @property
    def seen(self) -> list[str]:
        """The same as text."""
        return [self.renderer.vocabulary.decode(prompt) for prompt in self.prompts]


def letters(renderer: Renderer, text: str, end: bool = True) -> list[int]:
    """Ids of a text letter by letter, as a model may write it and no tokenizer would; added tokens stay whole."""
    vocabulary = renderer.vocabulary
    names = "|".join(re.escape(name) for name in sorted(vocabulary.added, key=len, reverse=True) if name.strip())
    ids = [
        token
        for number, piece in enumerate(re.split(f"({names})", text))
        for part in ([piece] if number % 2 else list(piece))
        for token in vocabulary.encode(part)
    ]
    return [*ids, renderer.stop_ids[-1]] if end else ids


def write_template(folder: Path, template: str, **changes: Any) -> None:
    config = json.loads((folder / "tokenizer_config.json").read_text())
    (folder / "tokenizer_config.json").write_text(json.dumps({**config, "chat_template": template, **changes}))


def contains(ids: list[int], part: list[int]) -> bool:
    return any(ids[place : place + len(part)] == part for place in range(len(ids)))
