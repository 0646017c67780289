"""How a client wants to be answered, checked: what a sampler is asked for. Pure.

Clients are served as they wish; what no sampler can do is refused in one sentence.
"""

from __future__ import annotations

import json
import math
import secrets
from dataclasses import dataclass

from ...gateway.wire import Wishes as Asked
from ...rollout import Truncation, Wishes, noise_seed
from .messages import refused

HOTTEST = 100.0
MOST_CHOICES = 64
"""Choices of one prompt."""
MOST_LIKELIEST = 20
"""Likeliest tokens in each place."""
MOST_STOPS = 16
LONGEST_STOP = 500
"""Characters of a text that ends a reply."""
MOST_PENALTY = 2.0
FORMAT = "response_format"


@dataclass(frozen=True)
class Manner:
    """How the choices of a request are sampled."""

    temperature: float
    truncation: Truncation
    seed: int
    """Of the request; each prompt and choice has one of its own."""
    stops: tuple[str, ...]
    max_tokens: int | None
    """None: as many as there is room for."""
    choices: int
    logprobs: bool
    likeliest: int
    presence_penalty: float
    frequency_penalty: float
    schema: str
    schema_from: str
    """The parameter that the schema came with."""
    thinking: bool | None

    def seed_of(self, prompt: int, choice: int) -> int:
        """The seed of a choice; the first of the first prompt has the same, however many there are."""
        return noise_seed("served", self.seed, prompt, choice)

    def wishes(self, prompt: bool = False) -> Wishes | None:
        """What is asked of the sampler beyond tokens; None where that is nothing. ``prompt``: also log-probabilities of
        the prompt."""
        wanted = Wishes(
            likeliest=self.likeliest,
            prompt=prompt and self.logprobs,
            presence_penalty=self.presence_penalty,
            frequency_penalty=self.frequency_penalty,
            schema=self.schema,
        )
        return wanted if self.logprobs or wanted != Wishes() else None


def manner(asked: Asked, schema: str = "") -> Manner:
    """Check what a client asked for. ``schema``: of a call that is forced. Raises ``Refusal``."""
    temperature = _number(asked.temperature, 1.0, 0.0, HOTTEST, "temperature")
    if not 1 <= asked.n <= MOST_CHOICES:
        raise refused(f"n is {asked.n}; it must lie between 1 and {MOST_CHOICES}.", "n")
    if asked.max_tokens is not None and asked.max_tokens < 0:
        raise refused(f"max_tokens is {asked.max_tokens}; it must be 0 or more.", "max_tokens")
    if not 0 <= asked.top_logprobs <= MOST_LIKELIEST:
        raise refused(f"top_logprobs is {asked.top_logprobs}; it must lie between 0 and {MOST_LIKELIEST}.", "logprobs")
    if schema and asked.schema:
        raise refused("A call that is forced and a form of the answer cannot both be asked for.", "tool_choice")
    stops = tuple(stop for stop in asked.stop if stop)
    if len(stops) > MOST_STOPS or any(len(stop) > LONGEST_STOP for stop in stops):
        raise refused(f"stop may name {MOST_STOPS} texts of up to {LONGEST_STOP} characters.", "stop")
    return Manner(
        temperature=temperature,
        truncation=_truncation(asked),
        seed=secrets.randbits(63) if asked.seed is None else asked.seed,
        stops=stops,
        max_tokens=asked.max_tokens,
        choices=asked.n,
        logprobs=asked.logprobs,
        likeliest=asked.top_logprobs if asked.logprobs else 0,
        presence_penalty=_number(asked.presence_penalty, 0.0, -MOST_PENALTY, MOST_PENALTY, "presence_penalty"),
        frequency_penalty=_number(asked.frequency_penalty, 0.0, -MOST_PENALTY, MOST_PENALTY, "frequency_penalty"),
        schema=schema or _schema(asked.schema),
        schema_from="tools" if schema else FORMAT,
        thinking=asked.thinking,
    )


def _truncation(asked: Asked) -> Truncation:
    top_k = max(0, asked.top_k or 0)  # some clients write -1 for all
    top_p = 1.0 if asked.top_p is None else asked.top_p
    made = Truncation(top_k, top_p, asked.min_p or 0.0)
    if problem := made.problem():
        raise refused(problem, problem.partition(" ")[0])
    return made


def _number(value: float | None, usual: float, low: float, high: float, where: str) -> float:
    if value is None:
        return usual
    if not math.isfinite(value) or not low <= value <= high:
        raise refused(f"{where} is {value}; it must lie between {low:g} and {high:g}.", where)
    return value


def _schema(schema: str) -> str:
    if not schema:
        return ""
    try:
        known = isinstance(json.loads(schema), dict | bool)
    except (ValueError, RecursionError):
        known = False
    if not known:
        raise refused("The schema of the answer is no JSON object.", FORMAT)
    return schema
