"""Bytes that sampler and trainer of a base take, part by part, and the plan that fits into a machine's memory.

Pure arithmetic over a base's sizes; knows no machine. Constants were measured on bases of 42 to 315 million parameters.
The numbers for cards come from the Vulkan backend on a software device. vLLM's are as in vLLM 0.26 to 0.33.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Literal

from ..errors import BaseModelError
from .config import BFLOAT16, BITS, PRECISIONS, SAMPLERS, BaseConfig, halves_memory, nearest

Device = Literal["cpu", "cuda"]
FLOAT, HALF = 4, 2
"""Bytes of a float32, and of a bfloat16."""
MEBIBYTE = 1 << 20

# --- tensors ---


def linear_sizes(config: BaseConfig) -> tuple[tuple[int, int], ...]:
    """(out, in) of a layer's four products: linear layers with the same input are one product."""
    hidden, inner = config.hidden_size, config.intermediate_size
    queries, keys = config.heads * config.head_dim, config.kv_heads * config.head_dim
    return ((queries + 2 * keys, hidden), (hidden, queries), (2 * inner, hidden), (hidden, inner))


def layer_bytes(config: BaseConfig) -> int:
    """Bytes of all linear layers that adapters change, in float32."""
    return FLOAT * config.layers * sum(out * into for out, into in linear_sizes(config))


def adapter_bytes(config: BaseConfig, rank: int) -> int:
    """Bytes of A and B for each linear layer, in float32."""
    sums = sum(out + repeats * into for (out, into), repeats in zip(linear_sizes(config), (3, 1, 2, 1), strict=True))
    return FLOAT * config.layers * rank * sums


def key_value_bytes(config: BaseConfig, sequences: int, length: int, exact: bool) -> int:
    """Bytes of keys and values of sequences of ``length`` tokens, in float32 if ``exact``, else in 16 bits."""
    return config.layers * 2 * config.kv_heads * config.head_dim * (FLOAT if exact else HALF) * sequences * length


WHOLE_BLOCK = 256
"""Values that the smaller types store together; rows of another length get finer types."""
FINER = {"q6_k": 8.5, "q5_k_m": 6.5, "q4_k_m": 5.6}
"""Bits per weight of rows that are no multiple of ``WHOLE_BLOCK``."""


def weight_bytes(config: BaseConfig, parameters: int, weights: str) -> int:
    """Bytes of the file that llama.cpp reads; the smaller types keep the embedding finer than the rest."""
    bits_of = BITS if config.hidden_size % WHOLE_BLOCK == 0 else BITS | FINER
    bits, finest = bits_of[weights], max(bits_of[weights], bits_of["q6_k"])
    embedding = min(parameters, config.vocab_size * config.hidden_size * (1 if config.tie_word_embeddings else 2))
    return int((embedding * finest + (parameters - embedding) * bits) / 8)


# --- training passes ---

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
WORTH, WORTH_ON_CARD = 64, 512
"""Tokens from which a batch whose layers keep all is faster than a large one whose layers are computed once more.

Measured on a processor with the widths of Qwen2.5-0.5B, in seconds of one core for 1,000 tokens: 7.2 for batches of 32
tokens, 5.8 for 64, 4.8 for 128 and 4.3 for 256; computed once more 6.3, whatever their size. On cards it is not
measured: this many rows fill a product."""
AGAIN = 1.4
"""How many times as long a token takes whose layers are computed once more; measured there, too."""
WORKING = 2.5
"""What a layer's backward pass works with, as a multiple of what the layer keeps; measured."""


@dataclass(frozen=True)
class Kept:
    """What the kernels of a training pass keep for the backward pass."""

    factor: int = FLOAT
    """Bytes of each value that a matrix of the base is multiplied with; sums are in float32."""
    scores: int = TILED
    """Attention over fewer tokens keeps its probabilities; else it is computed again."""
    sum: int = FLOAT
    """Bytes of each value that comes of such a product."""
    opened: bool = True
    """Whether the activation's results are kept; else they are computed again."""
    rows: int = MOST_ROWS
    """Rows of a feed-forward part that are computed at a time if layers keep only their inputs."""
    worth: int = WORTH
    """Tokens from which a batch whose layers keep all is the faster one."""


EXACT = Kept()
"""What is kept in float32 on a processor."""
HALVED = Kept(HALF, scores=0, sum=HALF, opened=False)
"""What is kept with a base in bfloat16 on a processor."""


def kept_on_card(precision: str) -> Kept:
    """What the kernels of cards keep, with the base in that precision."""
    return Kept(FLOAT if precision == "f32" else HALF, scores=0, rows=MOST_ON_CARD, worth=WORTH_ON_CARD)


@dataclass(frozen=True)
class PassSize:
    """A training pass over ``tokens`` tokens, each of which attends to at most ``longest``, itself included."""

    config: BaseConfig
    tokens: int
    longest: int
    kept: Kept = EXACT

    @property
    def all(self) -> int:
        """Bytes if every layer keeps all that it has computed."""
        layer = self.tokens * sum(self._layer())
        return int((self.config.layers + WORKING) * layer + self._head())

    @property
    def inputs(self) -> int:
        """Bytes if layers keep only their inputs and are computed once more (gradient checkpointing)."""
        attention, feed_forward = self._layer()
        layer = self.tokens * attention + min(self.tokens, self.kept.rows) * feed_forward
        inputs = self.config.layers * FLOAT * self.tokens * self.config.hidden_size
        return int(inputs + (1 + WORKING) * layer + self._head())

    def _layer(self) -> tuple[int, int]:
        """Bytes for each token of what attention and feed-forward part of a layer keep."""
        config, kept = self.config, self.kept
        (qkv, hidden), (_, queries), (gates, _), (_, inner) = linear_sizes(config)
        normed = qkv if config.architecture == "qwen3" else 0
        scores = config.heads * self.longest if self.longest < kept.scores else 0
        attention = FLOAT * (2 * hidden + normed + scores) + kept.sum * qkv + kept.factor * (hidden + queries + qkv)
        sums = gates + (inner if kept.opened else 0)
        return attention, FLOAT * 2 * hidden + kept.sum * sums + kept.factor * (hidden + inner)

    def _head(self) -> int:
        """Bytes of hidden states, their gradient and what is between; all logits are never held at once."""
        return 4 * FLOAT * self.tokens * self.config.hidden_size


def _lengths(longest: int, kept: Kept) -> set[int]:
    """``longest``, and the length up to it that keeps the most probabilities for each token."""
    return {longest, min(longest, max(kept.scores - 1, 1))}


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

        If those are too few to be worth it, tokens whose layers are computed once more.
        """
        each = max(PassSize(config, 1, length, self.kept).all for length in _lengths(longest, self.kept))
        keeping = min(self.room // (each + 1), self.most)
        return keeping if keeping >= min(self.kept.worth, self.most) else self.most_tokens(config, longest)

    def most_tokens(self, config: BaseConfig, longest: int) -> int:
        """Tokens of a batch whose layers keep only their inputs."""
        each = max(PassSize(config, 1, length, self.kept).inputs for length in _lengths(longest, self.kept))
        return min(max(self.least, self.room // (each + 1)), self.most)

    def keeps_all(self, config: BaseConfig, tokens: int, longest: int) -> bool:
        """Whether the layers of such a pass may keep all that they have computed."""
        return PassSize(config, tokens, longest, self.kept).all <= self.room

    def modest(self, config: BaseConfig, longest: int) -> Budget:
        """What passes over sequences of up to ``longest`` tokens take of it on a processor: with a large base no more
        than its layers keep of ``MODEST`` tokens, or of the longest sequence if that is at most half of the default."""
        if layer_bytes(config) <= LARGE:
            return self
        usual, longest_only = (PassSize(config, tokens, longest, self.kept).all for tokens in (MODEST, longest))
        return replace(self, room=min(self.room, max(usual, min(longest_only, PASS_BYTES // 2))))

    def below(self, config: BaseConfig, tokens: int, longest: int) -> Budget:
        """A smaller budget: half of what a pass over this many tokens takes."""
        room = min(self.room, PassSize(config, tokens, longest, self.kept).all) // 2
        most = min(self.most, tokens) // 2
        return replace(self, room=room, least=min(self.least, most), most=most)


def pass_bytes(
    config: BaseConfig, longest: int, room: int = PASS_BYTES, kept: Kept = EXACT, most: int = MOST_TOKENS
) -> int:
    """The most bytes that training on sequences of up to ``longest`` tokens takes; one may need more than ``room``."""
    sizes = (PassSize(config, max(LEAST_TOKENS, length), length, kept) for length in _lengths(longest, kept))
    largest = PassSize(config, most, longest, kept)
    return max(*(size.inputs for size in sizes), min(room, max(largest.all, largest.inputs)))


def card_pass_bytes(config: BaseConfig, longest: int, room: int, precision: str) -> int:
    """As ``pass_bytes``, on a card with the base in this precision."""
    return pass_bytes(config, longest, room, kept_on_card(precision), MOST_ON_CARD)


# --- llama.cpp and the torch sampler ---
#
# Buffers are reserved for a full micro-batch. In main memory only what is written takes memory, on a card all of it
# does; keys and values are written at the start. What CUDA takes besides (``BACKEND``) is NVIDIA's figure.

MICRO_BATCH = 256
"""Rows that llama.cpp computes at once: all sequences of a decode call (it allows 256), and prompts no slower than with
512."""
LLAMA_BLOCK = 256
"""Tokens in a unit of a sequence's memory in llama.cpp."""
FLASH = 1024
"""Most tokens of a sequence with which fused attention in float32 is faster on the processor: it reads what is held,
but token by token; attention that is not fused reads whole blocks in products."""
GRAPHS = 24 << 20
"""Bytes of graphs, batches and threads' buffers."""
BACKEND = 512 << 20
"""Bytes that a card's libraries take for themselves: CUDA's context, and the workspace of cuBLAS."""
PREFILL = 4096
"""Prompt tokens that a sampler computes before the running turns get their next part."""
SCORED, SCORED_LOGITS = 128, 1 << 23
"""The most tokens that a sampler scores at once, and the most logits that it makes for them."""
FUSED_COPIES = 2
"""Size of an adapter in the torch sampler, in adapters: layers with the same input share one block-diagonal matrix."""


def padded_length(length: int) -> int:
    """Tokens that memory is reserved for, in whole blocks, for a sequence of up to ``length``."""
    return -(-length // LLAMA_BLOCK) * LLAMA_BLOCK


def scored_rows(vocabulary: int) -> int:
    """Tokens that a sampler scores at once."""
    return max(1, min(SCORED, SCORED_LOGITS // vocabulary))


def logits_bytes(config: BaseConfig, sequences: int) -> int:
    """Bytes of logits in the graph's buffer and in the caller's, for as many rows as may need them."""
    return 2 * FLOAT * max(sequences, scored_rows(config.vocab_size)) * config.vocab_size


def work_bytes(config: BaseConfig, length: int, exact: bool, stores_scores: bool = False) -> int:
    """Bytes of llama.cpp's buffers for layers. Attention that is not fused stores all its scores: on cards, over keys
    and values in float16, and over long sequences."""
    scores = config.heads * padded_length(length) if exact and (stores_scores or length > FLASH) else 0
    widest = max(3 * config.intermediate_size, config.heads * config.head_dim)
    return FLOAT * min(MICRO_BATCH, padded_length(length)) * (scores + widest + 6 * config.hidden_size) + GRAPHS


def torch_work_bytes(config: BaseConfig, length: int, half: bool = False) -> int:
    """Bytes of the torch sampler's buffers; ``half``: with the base in bfloat16.

    It computes ``PREFILL`` tokens together, but the attention of each prompt by itself: short ones with all scores,
    longer ones in tiles.
    """
    layer = PREFILL * (4 * config.intermediate_size + 8 * config.hidden_size)
    short = min(length, TILED_HALVED if half else TILED)
    tiled = 6 * min(length, PREFILL) * config.heads * config.head_dim
    return FLOAT * (layer + short * PREFILL + max(3 * config.heads * short * short, tiled))


def context_bytes(config: BaseConfig, sequences: int, length: int, exact: bool) -> int:
    """Bytes of a llama.cpp context without the weights; ``sequences`` includes the sampler's spare ones."""
    memory = key_value_bytes(config, sequences, padded_length(length), exact)
    return memory + logits_bytes(config, sequences) + work_bytes(config, length, exact)


def card_bytes(config: BaseConfig, weights: int, sequences: int, length: int, exact: bool, layers: int) -> int:
    """Bytes that llama.cpp takes of a card with ``layers`` on it; the output matrix counts as the last.

    0 for no layers. ``weights`` are the bytes of the file. Adapters come on top. The embedding stays in main memory,
    and a tied output matrix is copied to the card.
    """
    if layers == 0:
        return 0
    layer, output = sum(out * into for out, into in linear_sizes(config)), config.vocab_size * config.hidden_size
    whole = config.layers * layer + (output if config.tie_word_embeddings else 2 * output)
    inner = min(layers, config.layers + 1) - 1
    memory = key_value_bytes(config, sequences, padded_length(length), exact)
    held = weights * (inner * (layer / whole) + output / whole) + memory * inner / config.layers
    logits = FLOAT * MICRO_BATCH * config.vocab_size
    return int(held) + logits + work_bytes(config, length, exact, stores_scores=True) + BACKEND


def layers_on_card(config: BaseConfig, weights: int, sequences: int, length: int, exact: bool, room: int) -> int:
    """How many layers fit into ``room`` bytes of cards; the output matrix counts as the last."""
    for layers in range(config.layers + 1, 0, -1):
        if card_bytes(config, weights, sequences, length, exact, layers) <= room:
            return layers
    return 0


def version_bytes(config: BaseConfig, rank: int, torch: bool) -> int:
    """Bytes of the sampler's memory that a version takes."""
    return (FUSED_COPIES if torch else 1) * adapter_bytes(config, rank)


# --- vLLM ---

RANKS = (1, 8, 16, 32, 64, 128, 256, 320, 512)
"""Largest ranks that vLLM can be started with; every adapter takes as much memory and time as one of that rank."""
BLOCK = {"cpu": 32, "cuda": 16}
"""Tokens of a block of keys and values, which conversations with the same beginning share: the least that the attention
kernels allow. What scores have in common is also found by blocks."""
SPARE = 8
"""Blocks beyond those of the conversations: for scores, and one that vLLM keeps for itself."""
SLOTS = 32
"""The most adapters in one pass; more wait for a slot."""
BATCH = 512
"""Tokens in one pass on a processor, unless there are more or longer conversations: it gathers the adapter's matrices
for each token. A prompt is read in one pass there: vLLM 0.32 crashes on a request with a seed that is read in parts,
because the processor's random numbers cannot be taken back."""


def rank_class(rank: int) -> int:
    """The least of ``RANKS`` that holds adapters of ``rank``. Raises ``ValueError``."""
    for each in RANKS:
        if each >= rank:
            return each
    raise ValueError(f"vLLM serves adapters up to rank {RANKS[-1]}; {rank} was asked for.")


def slots_for(versions: int) -> int:
    """Adapters in one pass if ``versions`` may be live at the same time."""
    return max(1, min(SLOTS, versions))


def batch_for(sequences: int, context: int) -> int:
    """Tokens in one pass on a processor."""
    return max(BATCH, sequences, context + 1)


def whole_blocks(tokens: int, device: Device) -> int:
    """Tokens that memory is reserved for, in whole blocks, for a conversation of ``tokens``."""
    return -(-tokens // BLOCK[device]) * BLOCK[device]


def cache_bytes(config: BaseConfig, sequences: int, context: int, device: Device) -> int:
    """Bytes of keys and values of all conversations at their longest, and of spare blocks.

    In float32 on a processor, in bfloat16 on a card.
    """
    tokens = sequences * whole_blocks(context + 1, device) + SPARE * BLOCK[device]
    return key_value_bytes(config, 1, tokens, device == "cpu")


def slots_bytes(config: BaseConfig, rank: int, slots: int, device: Device) -> int:
    """Bytes of the adapter slots, full or empty; ``rank`` is one of ``RANKS``."""
    return slots * adapter_bytes(config, rank) * (FLOAT if device == "cpu" else HALF) // FLOAT


# --- what sampler and trainer take, part by part ---

FLOORS = {"llama.cpp": 60 * MEBIBYTE, "torch": 250 * MEBIBYTE, "vllm": 700 * MEBIBYTE}
"""Bytes of the interpreter and libraries of a worker."""
SCORING = 2
"""Sequences that the sampler keeps for scoring."""
RANK = 16
"""The usual rank of adapters."""
VERSIONS = 3
"""Versions of a policy that the sampler holds at the same time: one more than the default ``max_staleness``."""
COPIES, STEPPING = 4, 10
"""What the trainer holds of each policy, and what it takes besides while one makes a step; both in adapters."""
EPISODES, NOTED = 64, 13
"""Episodes of a step that a policy remembers for several epochs, and bytes for each of their tokens."""
GAPS = 256 * MEBIBYTE
"""Bytes of gaps between blocks of memory, which passes of different shapes leave in the trainer."""


@dataclass(frozen=True)
class Wanted:
    """A base and the settings for it; 0 and ``auto`` leave the choice to the plan."""

    config: BaseConfig
    parameters: int
    """Number of the base's parameters, from its files."""
    sampler: str = "llama.cpp"
    """``llama.cpp``, ``torch`` or ``vllm``."""
    weights: str = "auto"
    gguf_bytes: int = 0
    """Bytes of the base's GGUF file that the user provides; 0: none."""
    sequences: int = 0
    context: int = 0
    exact: bool = True
    largest_rank: int = 64
    """The largest rank of adapters that vLLM is started for."""
    tasks: int = 32
    """Tasks that train at the same time."""
    slots: int = 0
    """Policies that the trainer holds at the same time; others are paged out."""
    trains: bool = True
    """Whether there is a trainer next to the sampler."""
    trainers: int = 1
    """How many training workers there are, if any: each has the base, and the policies are divided among them."""
    precision: str = "f32"
    """How a trainer on the processor keeps the base: ``f32`` or ``bf16``."""


def policy_bytes(config: BaseConfig, rank: int, context: int) -> int:
    """Bytes of the trainer's memory that a policy takes: its vectors, and what several epochs remember of a step."""
    return COPIES * adapter_bytes(config, rank) + EPISODES * NOTED * context


def slot_bytes(config: BaseConfig, context: int) -> int:
    """Bytes of the trainer's memory that a policy of the usual rank takes."""
    return policy_bytes(config, RANK, context)


def needs(
    wanted: Wanted, weights: str, sequences: int, context: int, room: int, slots: int
) -> tuple[tuple[str, int], ...]:
    """(what, in words; bytes) of every part for these choices; ``room`` is what a training pass may take."""
    config, versions, half = wanted.config, VERSIONS * wanted.tasks, weights == BFLOAT16
    held = sequences + sequences % 2 + SCORING
    base = wanted.gguf_bytes or weight_bytes(config, wanted.parameters, weights)
    if half and not wanted.gguf_bytes and config.tie_word_embeddings:
        # products need the output matrix in its own order, in which rows of the embedding cannot be looked up
        base += int(config.vocab_size * config.hidden_size * BITS[BFLOAT16] / 8)
    if wanted.sampler == "vllm":  # on the processor, in float32
        rank, held, base = rank_class(wanted.largest_rank), sequences, FLOAT * wanted.parameters
        memory = cache_bytes(config, sequences, context, "cpu")
        widest = max(max(out, into) for out, into in linear_sizes(config))
        work = FLOAT * batch_for(sequences, context) * widest * rank  # matrices gathered for each token of a pass
        adapters = slots_bytes(config, rank, slots_for(versions), "cpu") + versions * adapter_bytes(config, RANK)
    elif wanted.sampler == "torch":
        memory = key_value_bytes(config, held, context, not half)
        work = torch_work_bytes(config, context, half)
        adapters = versions * version_bytes(config, RANK, torch=True)
    else:
        stored = nearest(8 * wanted.gguf_bytes / wanted.parameters) if wanted.gguf_bytes else weights
        exact, rounded = wanted.exact and not half, halves_memory(stored)
        memory = key_value_bytes(config, held, padded_length(context), exact and not rounded)
        work = work_bytes(config, context, exact, stores_scores=rounded)
        adapters = versions * version_bytes(config, RANK, torch=False)
    parts = {
        "the sampler's weights": base,
        "keys and values of conversations": memory,
        "the sampler's logits": logits_bytes(config, held),
        "what the sampler computes with": work,
        "adapters in the sampler": adapters,
        "the sampler's program": FLOORS[wanted.sampler],
    }
    if wanted.trains:
        value, kept = (HALF, HALVED) if wanted.precision == BFLOAT16 else (FLOAT, EXACT)
        prepared = value * max(out * into for out, into in linear_sizes(config))  # a matrix in the kernels' order
        step = STEPPING * adapter_bytes(config, RANK)  # it reuses the memory of a pass
        workers = wanted.trainers
        policies = slots * workers if wanted.slots else slots  # the setting is of each trainer
        parts |= {
            "the trainer's weights": workers * value * wanted.parameters,
            "a training pass": workers * max(pass_bytes(config, context, room, kept) + prepared, step),
            "gaps in the trainer's memory": workers * GAPS,
            "adapters and their moments in the trainer": policies * slot_bytes(config, context),
            "the trainer's program": workers * FLOORS["torch"],
        }
    return tuple(parts.items())


# --- plans ---

SMALL = 64 << 20
"""Bytes of float32 weights up to which the sampler, too, keeps a base in float32."""
LONG = 8192
"""Context length in tokens from which on a base counts as made for long contexts."""
CONTEXTS = (2048, 1024, 512)
"""Context lengths to choose from if the settings have none; those before the last only for bases made for long ones.

Longer ones would fill the memory of a machine that others use, too: a person has to ask for them."""
LEAST, STEP = 8, 8
"""The fewest conversations, and the step between numbers of conversations."""
ENOUGH = 32
"""Conversations that a plan with a longer context than the shortest must have room for."""
SHARE = 0.7
"""Share of the free memory that a plan with a longer context may fill."""
FEW_SLOTS = 4
"""The least policies that the trainer has room for, unless the settings say otherwise: the base's weights take as much
as dozens of them."""
SHARE_HELD = 0.5
"""Share of the memory which a plan leaves free that policies of larger ranks may take before they are paged out."""
ROOMS = (PASS_BYTES, PASS_BYTES // 4)
"""Bytes for a training pass; with the second, batches are smaller."""


@dataclass(frozen=True)
class MemoryPlan:
    """How memory is used: the numbers that fit, and what each part takes."""

    sequences: int
    """Conversations at the same time."""
    context: int
    """Tokens of each conversation."""
    weights: str
    """How the sampler keeps the base's matrices, one of ``PRECISIONS`` or ``BFLOAT16``."""
    room: int
    """Bytes that a training pass may take, unless one sequence needs more by itself."""
    slots: int
    """Policies of the usual rank that the trainer has room for; others are paged out."""
    held: int
    """Bytes that policies may take before they are paged out: those of ``slots``, and a share of what stays free for
    larger ranks. 0: no limit."""
    parts: tuple[tuple[str, int], ...]
    """(what, in words; bytes) of each part."""

    @property
    def total(self) -> int:
        """Bytes of both workers together."""
        return sum(size for _, size in self.parts)

    def lines(self) -> tuple[tuple[str, int], ...]:
        """(what, bytes) of each part, the largest first; the last is the sum."""
        return (*sorted(self.parts, key=lambda part: -part[1]), ("together", self.total))


def plan_memory(wanted: Wanted, free: int) -> MemoryPlan:
    """The best plan that takes at most ``free`` bytes. Raises ``BaseModelError`` if not even the least one fits.

    The best has the longest context that leaves room for ``ENOUGH`` conversations, with as many as there is room for.
    With less memory, first policies are paged out, and passes and weights become smaller; then conversations become
    fewer. What the settings fix is not changed.
    """
    plan = _best(wanted, free)
    if plan is None:
        raise _refusal(wanted, free)
    spare = int(SHARE_HELD * (free - plan.total))
    return plan if wanted.slots else replace(plan, held=plan.held + spare)


def least_plan(wanted: Wanted) -> MemoryPlan:
    """The plan that takes the least memory under these settings."""
    return tuple(_plans(wanted))[-1]


def _best(wanted: Wanted, free: int) -> MemoryPlan | None:
    least = _contexts(wanted)[-1]
    fitting = (plan for plan in _plans(wanted) if plan.total <= (free if plan.context == least else SHARE * free))
    return next(fitting, None)


def _plans(wanted: Wanted) -> Iterator[MemoryPlan]:
    """All plans from best to worst; the last takes less memory than any other."""

    def plan(weights: str, sequences: int, context: int, room: int, slots: int) -> MemoryPlan:
        held = 0 if wanted.slots else slots * slot_bytes(wanted.config, context)
        parts = needs(wanted, weights, sequences, context, room, slots)
        return MemoryPlan(sequences, context, weights, room, slots, held, parts)

    large = wanted.weights == BFLOAT16  # as many as with llama.cpp: rows cost time then, and conversations memory
    most = SAMPLERS["llama.cpp" if large else wanted.sampler].conversations
    sequences = (wanted.sequences,) if wanted.sequences else range(most, LEAST - 1, -STEP)
    contexts, precisions = _contexts(wanted), _precisions(wanted)
    slots = [min(wanted.slots, wanted.tasks)]
    if not wanted.slots:
        few = min(wanted.tasks, FEW_SLOTS)
        slots = sorted({max(few, wanted.tasks >> half) for half in range(10)}, reverse=True)
    for context in contexts:
        for count in sequences:
            if count >= ENOUGH:
                yield from (plan(precisions[0], count, context, ROOMS[0], policies) for policies in slots)
    for count in sequences:
        if count <= ENOUGH or wanted.sequences:
            for room in ROOMS:
                for weights in precisions:
                    yield from (plan(weights, count, contexts[-1], room, policies) for policies in slots)


def _precisions(wanted: Wanted) -> tuple[str, ...]:
    """The precisions to choose from, the preferred one first.

    A base that is larger than the caches is limited by memory bandwidth with few conversations, and by arithmetic with
    many: with one row, eight bits for each weight are up to 2.4 times as fast as 32, with 32 rows only as fast. So
    sixteen bits come first, which are as exact as 32 but for 0.001 nats, and eight if memory is short.
    """
    traits = SAMPLERS[wanted.sampler]
    if not traits.gguf:
        return (wanted.weights,) if wanted.weights in traits.weights else ("f32",)
    if wanted.gguf_bytes:
        return ("f32",)
    if wanted.weights != "auto":
        return (wanted.weights,)
    return PRECISIONS if FLOAT * wanted.parameters <= SMALL else PRECISIONS[PRECISIONS.index("f16") :]


def _contexts(wanted: Wanted) -> tuple[int, ...]:
    made_for = wanted.config.context_length
    if not wanted.context and made_for >= LONG:
        return CONTEXTS
    return (min(wanted.context or CONTEXTS[-1], made_for),)


def _refusal(wanted: Wanted, free: int) -> BaseModelError:
    """The error, with changes of the settings that would fit: first single ones, then all together."""
    auto = SAMPLERS[wanted.sampler].gguf and not wanted.gguf_bytes and wanted.weights != "auto"
    both = "`sequences = {0.sequences}` with `context = {0.context}`"
    numbers = {"sequences": 0, "context": 0}
    ways: list[tuple[object, str, dict[str, object]]] = [
        (wanted.sequences, "`sequences = {0.sequences}`", {"sequences": 0}),
        (wanted.context, "`context = {0.context}`", {"context": 0}),
        (auto, '`weights = "{0.weights}"`', {"weights": "auto"}),
        (wanted.tasks > 1, "`tasks = 1` under [engine]", {"tasks": 1}),
        (wanted.slots, "`slots = 0` under [training]", {"slots": 0}),
        (wanted.sequences and wanted.context, both, {**numbers}),
        (
            auto and (wanted.sequences or wanted.context),
            f'{both} and `weights = "{{0.weights}}"`',
            {**numbers, "weights": "auto"},
        ),
    ]
    fitting = []
    for applies, words, changes in ways:
        if applies and (plan := _best(replace(wanted, **changes), free)):  # type: ignore[arg-type]
            fitting.append(words.format(plan))
    least = least_plan(wanted)
    (first, first_size), (second, second_size) = least.lines()[:2]
    return BaseModelError(
        f"The base needs {least.total / 1e9:.1f} GB of memory for {least.sequences} conversations of {least.context}"
        f" tokens, most of it for {first} ({first_size / 1e9:.1f} GB) and {second} ({second_size / 1e9:.1f} GB);"
        f" {free / 1e9:.1f} GB are free on this machine.",
        f"In marlaas.toml, {', or '.join(fitting[:2])} would fit; so would a smaller base."
        if fitting
        else "Choose a smaller base, or free some memory.",
    )
