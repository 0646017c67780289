"""Bytes that sampler and trainer take, and the plan that fits.

Constants were measured on bases of 42 to 315 million parameters, those for cards with Vulkan on a software device;
vLLM's are of 0.26 to 0.33.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Literal

from ..errors import BaseModelError
from .config import BFLOAT16, BITS, PRECISIONS, SAMPLERS, BaseConfig, halves_memory, nearest

Device = Literal["cpu", "cuda"]
FLOAT, HALF = 4, 2
MEBIBYTE = 1 << 20


def linear_sizes(config: BaseConfig) -> tuple[tuple[int, int], ...]:
    """(out, in) of a layer's four products: layers with one input are one."""
    hidden, inner = config.hidden_size, config.intermediate_size
    queries, keys = config.heads * config.head_dim, config.kv_heads * config.head_dim
    return ((queries + 2 * keys, hidden), (hidden, queries), (2 * inner, hidden), (hidden, inner))


def layer_bytes(config: BaseConfig) -> int:
    """Bytes of all adapted linear layers, in float32."""
    return FLOAT * config.layers * sum(out * into for out, into in linear_sizes(config))


def adapter_bytes(config: BaseConfig, rank: int) -> int:
    """Bytes of A and B, in float32."""
    sums = sum(out + repeats * into for (out, into), repeats in zip(linear_sizes(config), (3, 1, 2, 1), strict=True))
    return FLOAT * config.layers * rank * sums


def key_value_bytes(config: BaseConfig, sequences: int, length: int, exact: bool) -> int:
    """Bytes of keys and values: float32 if ``exact``, else 16 bits."""
    return config.layers * 2 * config.kv_heads * config.head_dim * (FLOAT if exact else HALF) * sequences * length


WHOLE_BLOCK = 256
"""Values that smaller types store together."""
FINER = {"q6_k": 8.5, "q5_k_m": 6.5, "q4_k_m": 5.6}
"""Bits per weight of rows that do not fit ``WHOLE_BLOCK``."""


def weight_bytes(config: BaseConfig, parameters: int, weights: str) -> int:
    """Bytes of llama.cpp's file; smaller types keep the embedding finer."""
    bits_of = BITS if config.hidden_size % WHOLE_BLOCK == 0 else BITS | FINER
    bits, finest = bits_of[weights], max(bits_of[weights], bits_of["q6_k"])
    embedding = min(parameters, config.vocab_size * config.hidden_size * (1 if config.tie_word_embeddings else 2))
    return int((embedding * finest + (parameters - embedding) * bits) / 8)


# --- training passes ---

PASS_BYTES = 1 << 30
LEAST_TOKENS, MOST_TOKENS = 512, 4096
"""Tokens that a batch may always hold, and most useful ones on a processor."""
LARGE, MODEST = 64 << 20, 192
"""Bytes of a large base's layers, and tokens of its batches on a processor, unless a sequence has more: 256 would save
a twentieth of the time for a third more memory."""
MOST_ROWS = 2048
"""Useful rows of a product on a processor."""
MOST_ON_CARD = 1 << 16
"""Tokens that fill each product on a card many times over."""
TILED, TILED_HALVED = 384, 1024
"""Tokens from which tiled attention is no slower on a processor, in float32 and bfloat16."""
WORTH, WORTH_ON_CARD = 64, 512
"""Tokens from which keeping all is faster than recomputing.

Processor, widths of Qwen2.5-0.5B, core seconds per 1,000 tokens: 7.2 for batches of 32, 5.8 for 64, 4.8 for 128, 4.3
for 256; recomputed 6.3. Not measured on cards: this many rows fill a product.
"""
AGAIN = 1.4
"""Relative time of a recomputed token; measured there, too."""
WORKING = 2.5
"""A layer's backward workspace, relative to what it keeps; measured."""


@dataclass(frozen=True)
class Kept:
    """What a training pass keeps for the backward pass; attention is computed again."""

    factor: int = FLOAT
    """Bytes of a factor of a base's product."""
    sum: int = FLOAT
    """Bytes of a value of such a product's result."""
    opened: bool = True
    """Keeps the activation's results, else recomputes."""
    rows: int = MOST_ROWS
    worth: int = WORTH


EXACT = Kept()
HALVED = Kept(HALF, sum=HALF, opened=False)


def kept_on_card(precision: str) -> Kept:
    """What cards keep, with the base in that precision."""
    return Kept(FLOAT if precision == "f32" else HALF, rows=MOST_ON_CARD, worth=WORTH_ON_CARD)


@dataclass(frozen=True)
class PassSize:
    """A pass over ``tokens``."""

    config: BaseConfig
    tokens: int
    kept: Kept = EXACT

    @property
    def all(self) -> int:
        """Bytes if every layer keeps all."""
        layer = self.tokens * sum(self._layer())
        return int((self.config.layers + WORKING) * layer + self._head())

    @property
    def inputs(self) -> int:
        """Bytes if layers recompute from inputs (gradient checkpointing)."""
        attention, feed_forward = self._layer()
        layer = self.tokens * attention + min(self.tokens, self.kept.rows) * feed_forward
        inputs = self.config.layers * FLOAT * self.tokens * self.config.hidden_size
        return int(inputs + (1 + WORKING) * layer + self._head())

    def _layer(self) -> tuple[int, int]:
        """Bytes per token."""
        config, kept = self.config, self.kept
        (qkv, hidden), (_, queries), (gates, _), (_, inner) = linear_sizes(config)
        normed = qkv if config.architecture == "qwen3" else 0
        attention = FLOAT * (2 * hidden + normed) + kept.sum * qkv + kept.factor * (hidden + queries + qkv)
        sums = gates + (inner if kept.opened else 0)
        return attention, FLOAT * 2 * hidden + kept.sum * sums + kept.factor * (hidden + inner)

    def _head(self) -> int:
        """Bytes; all logits are never held at once."""
        return 4 * FLOAT * self.tokens * self.config.hidden_size


@dataclass(frozen=True)
class Budget:
    """What a training pass may take."""

    room: int = PASS_BYTES
    least: int = LEAST_TOKENS
    """Tokens of a batch, whatever their bytes."""
    most: int = MOST_TOKENS
    """Useful tokens of a batch."""
    kept: Kept = EXACT

    def tokens(self, config: BaseConfig) -> int:
        """Tokens of a batch that keeps all, or if too few to be worth it, of a recomputed one."""
        keeping = min(self.room // (PassSize(config, 1, self.kept).all + 1), self.most)
        return keeping if keeping >= min(self.kept.worth, self.most) else self.most_tokens(config)

    def most_tokens(self, config: BaseConfig) -> int:
        each = PassSize(config, 1, self.kept).inputs
        return min(max(self.least, self.room // (each + 1)), self.most)

    def keeps_all(self, config: BaseConfig, tokens: int) -> bool:
        return PassSize(config, tokens, self.kept).all <= self.room

    def modest(self, config: BaseConfig, longest: int) -> Budget:
        """Its share on a processor: for a large base what layers keep of ``MODEST`` tokens, or of the longest sequence
        if at most half of the default."""
        if layer_bytes(config) <= LARGE:
            return self
        usual, longest_only = (PassSize(config, tokens, self.kept).all for tokens in (MODEST, longest))
        return replace(self, room=min(self.room, max(usual, min(longest_only, PASS_BYTES // 2))))

    def below(self, config: BaseConfig, tokens: int) -> Budget:
        """Half of what such a pass takes."""
        room = min(self.room, PassSize(config, tokens, self.kept).all) // 2
        most = min(self.most, tokens) // 2
        return replace(self, room=room, least=min(self.least, most), most=most)


def pass_bytes(
    config: BaseConfig, longest: int, room: int = PASS_BYTES, kept: Kept = EXACT, most: int = MOST_TOKENS
) -> int:
    """Most bytes for sequences of up to ``longest``; one may need more than ``room``."""
    least, largest = (PassSize(config, tokens, kept) for tokens in (max(LEAST_TOKENS, longest), most))
    return max(least.inputs, min(room, max(largest.all, largest.inputs)))


def card_pass_bytes(config: BaseConfig, longest: int, room: int, precision: str) -> int:
    """As ``pass_bytes``, on a card in this precision."""
    return pass_bytes(config, longest, room, kept_on_card(precision), MOST_ON_CARD)


# --- llama.cpp and the torch sampler ---
#
# Buffers are for a full micro-batch. Main memory counts what is written, cards all. ``BACKEND`` is NVIDIA's figure.

MICRO_BATCH = 256
"""Rows that llama.cpp computes at once (256 allowed); prompts are no slower than with 512."""
LLAMA_BLOCK = 256
"""Tokens in a unit of memory."""
GRAPHS = 24 << 20
BACKEND = 512 << 20
"""Bytes: CUDA's context and cuBLAS's workspace."""
PREFILL = 4096
SCORED, SCORED_LOGITS = 128, 1 << 23
"""Most tokens and logits of one score."""
FUSED_COPIES = 2
"""Of an adapter in torch: layers with one input share a block-diagonal matrix."""


def padded_length(length: int) -> int:
    """Tokens reserved, in whole blocks."""
    return -(-length // LLAMA_BLOCK) * LLAMA_BLOCK


def scored_rows(vocabulary: int) -> int:
    """Tokens that a sampler scores at once."""
    return max(1, min(SCORED, SCORED_LOGITS // vocabulary))


def logits_bytes(config: BaseConfig, sequences: int) -> int:
    """Bytes of the graph's and the caller's buffer."""
    return 2 * FLOAT * max(sequences, scored_rows(config.vocab_size)) * config.vocab_size


def work_bytes(config: BaseConfig, length: int, exact: bool) -> int:
    """Bytes of llama.cpp's buffers. ``exact`` attention is not fused, and stores all scores."""
    scores = config.heads * padded_length(length) if exact else 0
    widest = max(3 * config.intermediate_size, config.heads * config.head_dim)
    return FLOAT * min(MICRO_BATCH, padded_length(length)) * (scores + widest + 6 * config.hidden_size) + GRAPHS


def torch_work_bytes(config: BaseConfig, length: int, half: bool = False) -> int:
    """Bytes of the torch sampler's buffers; ``half``: bfloat16 base.

    ``PREFILL`` tokens together, but each prompt's attention separately; long ones in tiles.
    """
    layer = PREFILL * (4 * config.intermediate_size + 8 * config.hidden_size)
    short = min(length, TILED_HALVED if half else TILED)
    tiled = 6 * min(length, PREFILL) * config.heads * config.head_dim
    return FLOAT * (layer + short * PREFILL + max(3 * config.heads * short * short, tiled))


def context_bytes(config: BaseConfig, sequences: int, length: int, exact: bool) -> int:
    """Bytes of a llama.cpp context without weights; ``sequences`` includes spare ones."""
    memory = key_value_bytes(config, sequences, padded_length(length), exact)
    return memory + logits_bytes(config, sequences) + work_bytes(config, length, exact)


def card_bytes(config: BaseConfig, weights: int, sequences: int, length: int, exact: bool, layers: int) -> int:
    """Bytes of a card with ``layers`` on it; the output matrix counts as the last.

    ``weights``: bytes of the file. Without adapters. The embedding stays in main memory; a tied output matrix is
    copied.
    """
    if layers == 0:
        return 0
    layer, output = sum(out * into for out, into in linear_sizes(config)), config.vocab_size * config.hidden_size
    whole = config.layers * layer + (output if config.tie_word_embeddings else 2 * output)
    inner = min(layers, config.layers + 1) - 1
    memory = key_value_bytes(config, sequences, padded_length(length), exact)
    held = weights * (inner * (layer / whole) + output / whole) + memory * inner / config.layers
    logits = FLOAT * MICRO_BATCH * config.vocab_size
    return int(held) + logits + work_bytes(config, length, exact) + BACKEND


def layers_on_card(config: BaseConfig, weights: int, sequences: int, length: int, exact: bool, room: int) -> int:
    """Layers that fit into ``room`` bytes; the output matrix counts as the last."""
    for layers in range(config.layers + 1, 0, -1):
        if card_bytes(config, weights, sequences, length, exact, layers) <= room:
            return layers
    return 0


def version_bytes(config: BaseConfig, rank: int, torch: bool) -> int:
    """Bytes of the sampler, per version."""
    return (FUSED_COPIES if torch else 1) * adapter_bytes(config, rank)


# --- vLLM ---

RANKS = (1, 8, 16, 32, 64, 128, 256, 320, 512)
"""vLLM's; every adapter costs as much as one of that rank."""
BLOCK = {"cpu": 32, "cuda": 16}
"""Tokens of a shared block of keys and values: the attention kernels' least."""
SPARE = 8
"""Blocks for scores, and one that vLLM keeps."""
SLOTS = 32
"""Most adapters in one pass; others wait."""
BATCH = 512
"""Tokens in one pass on a processor, as it gathers the adapter's matrices per token. Prompts are read in one pass: vLLM
0.32 crashes on a seeded request read in parts, as the processor's random numbers cannot be taken back."""


def rank_class(rank: int) -> int:
    """The least of ``RANKS`` for ``rank``. Raises ``ValueError``."""
    for each in RANKS:
        if each >= rank:
            return each
    raise ValueError(f"vLLM serves adapters up to rank {RANKS[-1]}; {rank} was asked for.")


def slots_for(versions: int) -> int:
    """Adapters in one pass for these live versions."""
    return max(1, min(SLOTS, versions))


def batch_for(sequences: int, context: int) -> int:
    """Tokens in one pass on a processor."""
    return max(BATCH, sequences, context + 1)


def whole_blocks(tokens: int, device: Device) -> int:
    """Tokens reserved, in whole blocks, for a conversation."""
    return -(-tokens // BLOCK[device]) * BLOCK[device]


def cache_bytes(config: BaseConfig, sequences: int, context: int, device: Device) -> int:
    """Bytes of keys and values at their longest, and spare blocks.

    float32 on a processor, bfloat16 on a card.
    """
    tokens = sequences * whole_blocks(context + 1, device) + SPARE * BLOCK[device]
    return key_value_bytes(config, 1, tokens, device == "cpu")


def slots_bytes(config: BaseConfig, rank: int, slots: int, device: Device) -> int:
    """Bytes, full or empty; ``rank`` is one of ``RANKS``."""
    return slots * adapter_bytes(config, rank) * (FLOAT if device == "cpu" else HALF) // FLOAT


FLOORS = {"llama.cpp": 60 * MEBIBYTE, "torch": 250 * MEBIBYTE, "vllm": 700 * MEBIBYTE}
"""Bytes of interpreter and libraries."""
SCORING = 2
RANK = 16
VERSIONS = 3
"""In the sampler: one more than the default ``max_staleness``."""
COPIES, STEPPING = 4, 10
"""In adapters: the trainer's memory per policy, and more while one makes a step."""
EPISODES, NOTED = 64, 13
"""Remembered for several epochs, and bytes per token."""
GAPS = 256 * MEBIBYTE
"""Bytes of gaps, from passes of different shapes."""


@dataclass(frozen=True)
class Wanted:
    """A base and settings; 0 and ``auto`` leave the choice to the plan."""

    config: BaseConfig
    parameters: int
    sampler: str = "llama.cpp"
    """``llama.cpp``, ``torch`` or ``vllm``."""
    weights: str = "auto"
    gguf_bytes: int = 0
    """Of the user's file; 0: none."""
    sequences: int = 0
    context: int = 0
    exact: bool = True
    largest_rank: int = 64
    tasks: int = 32
    slots: int = 0
    trains: bool = True
    trainers: int = 1
    """Each has the base, and a share of the policies."""
    precision: str = "f32"
    """Of a trainer on the processor: ``f32`` or ``bf16``."""


def policy_bytes(config: BaseConfig, rank: int, context: int) -> int:
    """Bytes of the trainer, per policy: vectors, and a step remembered for epochs."""
    return COPIES * adapter_bytes(config, rank) + EPISODES * NOTED * context


def slot_bytes(config: BaseConfig, context: int) -> int:
    """As ``policy_bytes``, of the usual rank."""
    return policy_bytes(config, RANK, context)


def needs(
    wanted: Wanted, weights: str, sequences: int, context: int, room: int, slots: int
) -> tuple[tuple[str, int], ...]:
    """(what, in words; bytes) of every part; ``room`` is for a training pass."""
    config, versions, half = wanted.config, VERSIONS * wanted.tasks, weights == BFLOAT16
    held = sequences + sequences % 2 + SCORING
    base = wanted.gguf_bytes or weight_bytes(config, wanted.parameters, weights)
    if half and not wanted.gguf_bytes and config.tie_word_embeddings:
        # products need the output matrix in its own order, without lookups of rows
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
        work = work_bytes(config, context, exact)
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
"""Bytes of float32 weights up to which the sampler keeps float32."""
LONG = 8192
"""Context tokens of bases made for long ones."""
CONTEXTS = (2048, 1024, 512)
"""Default choices; all but the last need bases made for long contexts.

Longer ones would fill a shared machine.
"""
LEAST, STEP = 8, 8
ENOUGH = 32
"""Conversations for more than the shortest context."""
SHARE = 0.7
FEW_SLOTS = 4
"""The base's weights take as much as dozens of policies."""
SHARE_HELD = 0.5
"""Of the remaining memory, for larger ranks."""
ROOMS = (PASS_BYTES, PASS_BYTES // 4)
"""Bytes; with the second, batches are smaller."""


@dataclass(frozen=True)
class MemoryPlan:
    """The numbers that fit, and what each part takes."""

    sequences: int
    context: int
    weights: str
    """One of ``PRECISIONS`` or ``BFLOAT16``."""
    room: int
    """Bytes of a training pass, unless one sequence needs more."""
    slots: int
    """Policies of usual rank in the trainer."""
    held: int
    """Bytes before paging: ``slots``, and a share for larger ranks. 0: no limit."""
    parts: tuple[tuple[str, int], ...]
    """(what, in words; bytes) of each part."""

    @property
    def total(self) -> int:
        return sum(size for _, size in self.parts)

    def lines(self) -> tuple[tuple[str, int], ...]:
        """Largest first; then the sum."""
        return (*sorted(self.parts, key=lambda part: -part[1]), ("together", self.total))


def plan_memory(wanted: Wanted, free: int) -> MemoryPlan:
    """The best plan within ``free`` bytes. Raises ``BaseModelError`` if none fits.

    It has the longest context with room for ``ENOUGH`` conversations, then as many as fit. Short of memory, policies
    are paged out, passes and weights shrink, then conversations. Settings stay.
    """
    plan = _best(wanted, free)
    if plan is None:
        raise _refusal(wanted, free)
    spare = int(SHARE_HELD * (free - plan.total))
    return plan if wanted.slots else replace(plan, held=plan.held + spare)


def least_plan(wanted: Wanted) -> MemoryPlan:
    """The plan of least memory under these settings."""
    return tuple(_plans(wanted))[-1]


ROUND = 4096
"""Tokens of a suggested context."""


def context_for(wanted: Wanted, tokens: int) -> str:
    """What to write for conversations of so many tokens, and what that takes; the end of a sentence."""
    made_for = wanted.config.context_length
    if tokens > made_for:
        return f"the base is made for {made_for:,}, so choose another base or a shorter prompt"
    context = min(-(-tokens // ROUND) * ROUND, made_for)
    least = least_plan(replace(wanted, context=context))
    takes = f"that takes at least {least.total / 1e9:.1f} GB of memory on a processor"
    return f"write `context = {context}` under [rollout] in marlaas.toml and start the engine again; {takes}"


def too_short(needed: int, context: int, wanted: Wanted) -> str:
    """For an environment that asks for more; empty: it has enough."""
    if needed <= context:
        return ""
    says = f"it asks for a context of {needed:,} tokens; the context is {context:,}"
    return f"{says}: {context_for(wanted, needed)}"


def _best(wanted: Wanted, free: int) -> MemoryPlan | None:
    least = _contexts(wanted)[-1]
    fitting = (plan for plan in _plans(wanted) if plan.total <= (free if plan.context == least else SHARE * free))
    return next(fitting, None)


def _plans(wanted: Wanted) -> Iterator[MemoryPlan]:
    """From best to worst; the last is the least."""

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
    """Preferred first.

    Beyond the caches memory bandwidth limits few conversations, arithmetic many: eight bits per weight are up to 2.4
    times as fast as 32 with one row, only as fast with 32 rows. So sixteen come first, exact but for 0.001 nats, and
    eight if memory is short.
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
    """With settings that would fit: single ones, then all together."""
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
