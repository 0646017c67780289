"""How many bytes the parts of a base, and of passes over it, take: what is planned with, and what limits a pass.

The sizes of a base flow in, bytes flow out. Pure arithmetic; knows no machine and no settings.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from .config import BaseConfig

FLOAT = 4
"""Bytes of a float32."""
PASS_BYTES = 1 << 30
"""Memory for what a training pass keeps and works with."""
LEAST_TOKENS, MOST_TOKENS = 512, 4096
"""A training batch may always hold the first number, and gains nothing beyond the second on a processor."""
MOST_ON_CARD = 1 << 16
"""On a card: enough rows for each product to fill it many times over."""
PREFILL = 4096
"""Prompt tokens that a sampler computes before the running turns get their next part."""
SCORED, SCORED_LOGITS = 128, 1 << 23
"""A sampler scores at most so many tokens at once, and makes at most so many logits."""
WORKING = 2.5
"""What a layer works with on its way back, as a multiple of what it keeps; measured."""


def linear_sizes(config: BaseConfig) -> tuple[tuple[int, int], ...]:
    """(out, in) of a layer's products; those with the same input are one."""
    hidden, inner = config.hidden_size, config.intermediate_size
    queries, keys = config.heads * config.head_dim, config.kv_heads * config.head_dim
    return ((queries + 2 * keys, hidden), (hidden, queries), (2 * inner, hidden), (hidden, inner))


def layer_bytes(config: BaseConfig) -> int:
    """The layers that adapters sit on, in float32."""
    return FLOAT * config.layers * sum(out * into for out, into in linear_sizes(config))


def adapter_bytes(config: BaseConfig, rank: int) -> int:
    """A and B on each linear layer, in float32."""
    (qkv, hidden), (_, queries), (gates, _), (_, inner) = linear_sizes(config)
    sums = (qkv + 3 * hidden) + (hidden + queries) + (gates + 2 * hidden) + (hidden + inner)
    return FLOAT * config.layers * rank * sums


def key_value_bytes(config: BaseConfig, sequences: int, length: int, exact: bool) -> int:
    """What sequences of so many tokens take as keys and values, in float32 where ``exact``, else in float16."""
    return config.layers * 2 * config.kv_heads * config.head_dim * (4 if exact else 2) * sequences * length


def scored_rows(vocabulary: int) -> int:
    """Tokens that a sampler scores at once."""
    return max(1, min(SCORED, SCORED_LOGITS // vocabulary))


@dataclass(frozen=True)
class Kept:
    """What the kernels of a training pass keep for the way back."""

    factor: int = FLOAT
    """Bytes of each value that a matrix of the base is multiplied with; sums are float32."""
    scores: bool = True
    """Whether attention keeps its probabilities; else it is computed again."""


EXACT = Kept()
"""In float32 on a processor."""


def kept_on_card(precision: str) -> Kept:
    """By the kernels of cards."""
    return Kept(FLOAT if precision == "f32" else 2, scores=False)


@dataclass(frozen=True)
class PassSize:
    """A training pass over ``tokens`` of which each sees at most ``longest``, itself included."""

    config: BaseConfig
    tokens: int
    longest: int
    kept: Kept = EXACT

    @property
    def all(self) -> int:
        """Bytes where every layer keeps all that it has computed."""
        return int((self.config.layers + WORKING) * self._layer + self._head)

    @property
    def inputs(self) -> int:
        """Bytes where layers keep their inputs alone and are computed once more."""
        inputs = self.config.layers * FLOAT * self.tokens * self.config.hidden_size
        return int(inputs + (1 + WORKING) * self._layer + self._head)

    @property
    def _layer(self) -> int:
        """What a layer keeps: what it computes with linear layers, what these read, norms, and attention."""
        (qkv, hidden), (_, queries), (gates, _), (_, inner) = linear_sizes(self.config)
        normed = qkv if self.config.architecture == "qwen3" else 0
        scores = self.config.heads * self.longest if self.kept.scores else 0
        sums = 4 * hidden + qkv + normed + gates + inner + scores
        factors = 2 * hidden + queries + qkv + inner
        return self.tokens * (FLOAT * sums + self.kept.factor * factors)

    @property
    def _head(self) -> int:
        """Hidden states, their gradient and what goes between; the logits themselves are never held."""
        return 4 * FLOAT * self.tokens * self.config.hidden_size


@dataclass(frozen=True)
class Budget:
    """What a training pass may take."""

    room: int = PASS_BYTES
    """Bytes."""
    least: int = LEAST_TOKENS
    """Tokens that a batch may hold whatever they take."""
    most: int = MOST_TOKENS
    """Tokens beyond which it gains nothing."""
    kept: Kept = EXACT

    def tokens(self, config: BaseConfig, longest: int) -> int:
        """Of a batch whose sequences have up to ``longest``."""
        fitting = self.room // PassSize(config, 1, longest, self.kept).inputs
        return min(max(self.least, fitting), self.most)

    def keeps_all(self, config: BaseConfig, tokens: int, longest: int) -> bool:
        """Whether the layers of such a pass may keep all that they have computed."""
        return PassSize(config, tokens, longest, self.kept).all <= self.room

    def below(self, config: BaseConfig, tokens: int, longest: int) -> Budget:
        """Half of what a pass over so many tokens takes."""
        room = min(self.room, PassSize(config, tokens, longest, self.kept).all) // 2
        most = min(self.most, tokens) // 2
        return replace(self, room=room, least=min(self.least, most), most=most)


def most_tokens(config: BaseConfig, longest: int, room: int = PASS_BYTES) -> int:
    """Of a training batch whose sequences have up to ``longest`` tokens."""
    return Budget(room).tokens(config, longest)


def pass_bytes(
    config: BaseConfig, longest: int, room: int = PASS_BYTES, kept: Kept = EXACT, most: int = MOST_TOKENS
) -> int:
    """What training on sequences of up to ``longest`` tokens takes at most: one alone may need more than ``room``."""
    alone = PassSize(config, max(LEAST_TOKENS, longest), longest, kept).inputs
    largest = PassSize(config, most, longest, kept)
    return max(alone, min(room, max(largest.all, largest.inputs)))


def card_pass_bytes(config: BaseConfig, longest: int, room: int, precision: str) -> int:
    """The same on a card, with the base in this precision."""
    return pass_bytes(config, longest, room, kept_on_card(precision), MOST_ON_CARD)
