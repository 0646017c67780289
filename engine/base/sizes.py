"""How many bytes the parts of a base, and passes over it, take: for memory plans, and for the limits of a pass.

Pure arithmetic; knows no machine and no settings.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from .config import BaseConfig

FLOAT = 4
"""Bytes of a float32."""
PASS_BYTES = 1 << 30
"""Default bytes for what a training pass keeps and works with."""
LEAST_TOKENS, MOST_TOKENS = 512, 4096
"""Tokens that a training batch may always hold, and beyond which it gains nothing on a processor."""
LARGE, MODEST = 64 << 20, 192
"""Bytes of all layers in float32 above which a base is large, and tokens of its batches on a processor, unless a
sequence has more: 256 would save a twentieth of the time, and take a third more memory."""
MOST_ROWS = 2048
"""Rows from which a product gains nothing on a processor, however wide the base is."""
MOST_ON_CARD = 1 << 16
"""The most tokens of a training batch on a card: enough rows for each product to fill it many times over."""
TILED, TILED_HALVED = 384, 1024
"""Tokens from which attention on a processor is computed in tiles, in float32 and in bfloat16. From there on they are
faster with AVX2 and AVX-512, more so with each token, and no slower with SSE; and they keep no probabilities."""
PREFILL = 4096
"""Prompt tokens that a sampler computes before the running turns get their next part."""
SCORED, SCORED_LOGITS = 128, 1 << 23
"""The most tokens that a sampler scores at once, and the most logits that it makes for them."""
WORTH, WORTH_ON_CARD = 64, 512
"""Tokens from which a batch whose layers keep all is faster than a large one whose layers are computed once more.

Measured on a processor with the widths of Qwen2.5-0.5B, in seconds of one core for 1,000 tokens: 7.2 for batches of 32
tokens, 5.8 for 64, 4.8 for 128 and 4.3 for 256; computed once more 6.3, whatever their size. On cards it is not
measured: this many rows fill a product."""
AGAIN = 1.4
"""How many times as long a token takes whose layers are computed once more; measured there, too."""
WORKING = 2.5
"""What a layer's backward pass works with, as a multiple of what the layer keeps; measured."""


def linear_sizes(config: BaseConfig) -> tuple[tuple[int, int], ...]:
    """(out, in) of a layer's products, where linear layers with the same input are one product."""
    hidden, inner = config.hidden_size, config.intermediate_size
    queries, keys = config.heads * config.head_dim, config.kv_heads * config.head_dim
    return ((queries + 2 * keys, hidden), (hidden, queries), (2 * inner, hidden), (hidden, inner))


def layer_bytes(config: BaseConfig) -> int:
    """Bytes of all linear layers that adapters change, in float32."""
    return FLOAT * config.layers * sum(out * into for out, into in linear_sizes(config))


def adapter_bytes(config: BaseConfig, rank: int) -> int:
    """Bytes of A and B for each linear layer, in float32."""
    (qkv, hidden), (_, queries), (gates, _), (_, inner) = linear_sizes(config)
    sums = (qkv + 3 * hidden) + (hidden + queries) + (gates + 2 * hidden) + (hidden + inner)
    return FLOAT * config.layers * rank * sums


def key_value_bytes(config: BaseConfig, sequences: int, length: int, exact: bool) -> int:
    """Bytes of keys and values of sequences of ``length`` tokens, in float32 where ``exact``, else in float16."""
    return config.layers * 2 * config.kv_heads * config.head_dim * (4 if exact else 2) * sequences * length


def scored_rows(vocabulary: int) -> int:
    """Tokens that a sampler scores at once."""
    return max(1, min(SCORED, SCORED_LOGITS // vocabulary))


@dataclass(frozen=True)
class Kept:
    """What the kernels of a training pass keep for the backward pass."""

    factor: int = FLOAT
    """Bytes of each value that a matrix of the base is multiplied with; sums are in float32."""
    scores: int = TILED
    """Where tokens attend to fewer than this many, attention keeps its probabilities; else it is computed again."""
    sum: int = FLOAT
    """Bytes of each value that comes of such a product."""
    opened: bool = True
    """Whether the activation's results are kept; else they are computed again."""
    rows: int = MOST_ROWS
    """Rows for which a feed-forward part is computed at a time where layers keep only their inputs."""
    worth: int = WORTH
    """Tokens from which a batch whose layers keep all is the faster one."""

    def up_to(self, longest: int) -> tuple[int, ...]:
        """Of lengths up to ``longest``, that one and the one with the most probabilities for each token."""
        return (longest, min(longest, max(self.scores - 1, 1)))


EXACT = Kept()
"""What is kept in float32 on a processor."""
HALVED = Kept(2, scores=0, sum=2, opened=False)
"""What is kept with a base in bfloat16 on a processor."""


def kept_on_card(precision: str) -> Kept:
    """What the kernels of cards keep, with the base in that precision."""
    return Kept(FLOAT if precision == "f32" else 2, scores=0, rows=MOST_ON_CARD, worth=WORTH_ON_CARD)


@dataclass(frozen=True)
class PassSize:
    """A training pass over ``tokens`` tokens, each of which attends to at most ``longest``, itself included."""

    config: BaseConfig
    tokens: int
    longest: int
    kept: Kept = EXACT

    @property
    def all(self) -> int:
        """Bytes where every layer keeps all that it has computed."""
        layer = self.tokens * (self._attending + self._feeding)
        return int((self.config.layers + WORKING) * layer + self._head)

    @property
    def inputs(self) -> int:
        """Bytes where layers keep only their inputs and are computed once more (gradient checkpointing)."""
        inputs = self.config.layers * FLOAT * self.tokens * self.config.hidden_size
        layer = self.tokens * self._attending + min(self.tokens, self.kept.rows) * self._feeding
        return int(inputs + (1 + WORKING) * layer + self._head)

    @property
    def _attending(self) -> int:
        """Bytes for each token of what the attention part of a layer keeps."""
        (qkv, hidden), (_, queries), _, _ = linear_sizes(self.config)
        normed = qkv if self.config.architecture == "qwen3" else 0
        scores = self.config.heads * self.longest if self.longest < self.kept.scores else 0
        return (
            FLOAT * (2 * hidden + normed + scores) + self.kept.sum * qkv + self.kept.factor * (hidden + queries + qkv)
        )

    @property
    def _feeding(self) -> int:
        """Likewise of its feed-forward part."""
        _, _, (gates, hidden), (_, inner) = linear_sizes(self.config)
        sums = gates + (inner if self.kept.opened else 0)
        return FLOAT * 2 * hidden + self.kept.sum * sums + self.kept.factor * (hidden + inner)

    @property
    def _head(self) -> int:
        """Bytes of hidden states, their gradient and what is between; all logits are never held at once."""
        return 4 * FLOAT * self.tokens * self.config.hidden_size


@dataclass(frozen=True)
class Budget:
    """What a training pass may take."""

    room: int = PASS_BYTES
    """Bytes of memory."""
    least: int = LEAST_TOKENS
    """Tokens that a batch may hold, however many bytes they take."""
    most: int = MOST_TOKENS
    """Tokens beyond which a batch gains nothing."""
    kept: Kept = EXACT

    def tokens(self, config: BaseConfig, longest: int) -> int:
        """Tokens of a batch in which a token attends to at most ``longest``: as many as the layers may keep all of.

        Where those are too few to be worth it, tokens whose layers are computed once more.
        """
        keeping = min(self.room // max(size.all + 1 for size in self._of_a_token(config, longest)), self.most)
        return keeping if keeping >= min(self.kept.worth, self.most) else self.most_tokens(config, longest)

    def most_tokens(self, config: BaseConfig, longest: int) -> int:
        """Tokens of a batch whose layers keep their inputs alone."""
        fitting = self.room // max(size.inputs + 1 for size in self._of_a_token(config, longest))
        return min(max(self.least, fitting), self.most)

    def _of_a_token(self, config: BaseConfig, longest: int) -> Iterator[PassSize]:
        return (PassSize(config, 1, length, self.kept) for length in self.kept.up_to(longest))

    def keeps_all(self, config: BaseConfig, tokens: int, longest: int) -> bool:
        """Whether the layers of such a pass may keep all that they have computed."""
        return PassSize(config, tokens, longest, self.kept).all <= self.room

    def modest(self, config: BaseConfig, longest: int) -> Budget:
        """What passes over sequences of up to ``longest`` tokens take of it on a processor: with a large base no more
        than its layers keep of ``MODEST`` tokens, or of the longest sequence if that is at most half of the default."""
        if layer_bytes(config) <= LARGE:
            return self
        usual, alone = (PassSize(config, *sizes, self.kept).all for sizes in ((MODEST, longest), (longest, longest)))
        return replace(self, room=min(self.room, max(usual, min(alone, PASS_BYTES // 2))))

    def below(self, config: BaseConfig, tokens: int, longest: int) -> Budget:
        """A smaller budget: half of what a pass over this many tokens takes."""
        room = min(self.room, PassSize(config, tokens, longest, self.kept).all) // 2
        most = min(self.most, tokens) // 2
        return replace(self, room=room, least=min(self.least, most), most=most)


def most_tokens(config: BaseConfig, longest: int, room: int = PASS_BYTES) -> int:
    """The most tokens of a training batch whose sequences have up to ``longest`` tokens."""
    budget = Budget(room)
    return max(budget.tokens(config, longest), budget.most_tokens(config, longest))


def pass_bytes(
    config: BaseConfig, longest: int, room: int = PASS_BYTES, kept: Kept = EXACT, most: int = MOST_TOKENS
) -> int:
    """The most bytes that training on sequences of up to ``longest`` tokens takes; one may need more than ``room``."""
    alone = max(PassSize(config, max(LEAST_TOKENS, length), length, kept).inputs for length in kept.up_to(longest))
    largest = PassSize(config, most, longest, kept)
    return max(alone, min(room, max(largest.all, largest.inputs)))


def card_pass_bytes(config: BaseConfig, longest: int, room: int, precision: str) -> int:
    """As ``pass_bytes``, on a card with the base in this precision."""
    return pass_bytes(config, longest, room, kept_on_card(precision), MOST_ON_CARD)
