"""What bodies of OpenAI's chat completions and completions have in common, and what their answers say they cost."""

from __future__ import annotations

from typing import Any

from msgspec import Struct

from ..answerer import Answered
from ..wire import Wishes
from .reading import Choices, Penalty, Seed, Share, Temperature, TopK, schema_of, stops, unsupported


class StreamOptions(Struct):
    """How to stream."""

    include_usage: bool | None = None


class SamplingBody(Struct):
    """How to sample and to stream; a body of each kind adds what it goes on with."""

    temperature: Temperature | None = None
    top_p: Share | None = None
    top_k: TopK | None = None
    min_p: Share | None = None
    n: Choices | None = None
    seed: Seed | None = None
    stop: str | list[str] | None = None
    presence_penalty: Penalty | None = None
    frequency_penalty: Penalty | None = None
    logit_bias: dict[str, float] | None = None
    response_format: dict[str, Any] | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None

    @property
    def wants_usage(self) -> bool:
        """Whether a stream ends with what it cost."""
        return bool(self.stream_options and self.stream_options.include_usage)

    def wishes(
        self,
        *,
        max_tokens: int | None,
        logprobs: bool,
        top_logprobs: int,
        tool_choice: str = "",
        thinking: bool | None = None,
    ) -> Wishes:
        """The same on the wire, with what each kind of body says in its own way. Raises ``Refusal``."""
        if self.logit_bias:
            raise unsupported("logit_bias is not supported: tokens are sampled as the model has them.", "logit_bias")
        return Wishes(
            max_tokens=max_tokens,
            temperature=self.temperature,
            top_p=self.top_p,
            top_k=self.top_k,
            min_p=self.min_p,
            seed=self.seed,
            stop=stops(self.stop),
            presence_penalty=self.presence_penalty or 0.0,
            frequency_penalty=self.frequency_penalty or 0.0,
            n=self.n or 1,
            logprobs=logprobs,
            top_logprobs=top_logprobs,
            tool_choice=tool_choice,
            schema=schema_of(self.response_format, "response_format"),
            thinking=thinking,
        )


def usage(answer: Answered) -> dict[str, Any]:
    """What an answer cost, in tokens."""
    return {
        "prompt_tokens": answer.prompt_tokens,
        "completion_tokens": answer.completion_tokens,
        "total_tokens": answer.prompt_tokens + answer.completion_tokens,
        "prompt_tokens_details": {"cached_tokens": answer.cached_tokens},
    }
