"""How many bytes the parts of a base and passes over it take, and whether it fits."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from ..errors import BaseModelError
from .config import BaseConfig
from .precision import BFLOAT16, BITS, PRECISIONS, halves_memory, nearest
from .samplers import SAMPLERS
from .sizes import (
    EXACT,
    FLOAT,
    HALVED,
    PASS_BYTES,
    PREFILL,
    TILED,
    TILED_HALVED,
    adapter_bytes,
    key_value_bytes,
    linear_sizes,
    pass_bytes,
    scored_rows,
)
from .vllm_memory import cache_bytes, gathered_bytes, rank_class, slots_bytes, slots_for

# Bytes that a llama.cpp context takes beside the weights, which are mapped from their file; and all of it on a card.
#
# Pure. Buffers are reserved for a full micro-batch. In main memory only what is written takes memory, on a card all
# of it does; keys and values (``sizes.key_value_bytes``) are written at the start. The card's numbers were measured
# with the Vulkan backend on a software device; what CUDA takes besides (``BACKEND``) is NVIDIA's figure, not measured
# here.

MICRO_BATCH = 256
"""Rows that llama.cpp computes at once: all sequences of a decode call (it allows 256), and prompts no slower than with
512."""
BLOCK = 256
"""Tokens in a unit of a sequence's memory in llama.cpp."""
FLASH = 1024
"""Most tokens of a sequence with which fused attention in float32 is faster on the processor: it reads what is held,
but token by token, if attention that is not fused reads whole blocks in products."""
GRAPHS = 24 << 20
"""Bytes of graphs, batches and threads' buffers."""
BACKEND = 512 << 20
"""Bytes that a card's libraries take for themselves: CUDA's context, and the workspace of cuBLAS."""


def padded_length(length: int) -> int:
    """Tokens that memory is reserved for, in whole blocks, for a sequence of up to ``length``."""
    return -(-length // BLOCK) * BLOCK


def logits_bytes(config: BaseConfig, sequences: int) -> int:
    """Bytes of logits in the graph's buffer and in the caller's, for as many rows as may need them."""
    return 2 * FLOAT * max(sequences, scored_rows(config.vocab_size)) * config.vocab_size


def work_bytes(config: BaseConfig, length: int, exact: bool, card: bool = False, half: bool = False) -> int:
    """Bytes of the layers' buffers; attention that is not fused stores all its scores. ``half``: over keys and values
    in float16."""
    scores = config.heads * padded_length(length) if exact and (card or half or length > FLASH) else 0
    widest = max(3 * config.intermediate_size, config.heads * config.head_dim)
    return FLOAT * min(MICRO_BATCH, padded_length(length)) * (scores + widest + 6 * config.hidden_size) + GRAPHS


def context_bytes(config: BaseConfig, sequences: int, length: int, exact: bool) -> int:
    """Bytes of a whole context; ``sequences`` includes the sampler's spare ones."""
    memory = _memory(config, sequences, length, exact)
    return memory + logits_bytes(config, sequences) + work_bytes(config, length, exact)


def card_bytes(config: BaseConfig, weights: int, sequences: int, length: int, exact: bool, layers: int) -> int:
    """Bytes that llama.cpp takes of a card with ``layers`` on it, of which the output matrix counts as the last.

    0 for no layers. ``weights`` are the bytes of the file. Adapters come on top. The embedding stays in main memory.
    """
    if layers == 0:
        return 0
    layer, output = _parts(config)
    inner = min(layers, config.layers + 1) - 1
    held = weights * (inner * layer + output) + _memory(config, sequences, length, exact) * inner / config.layers
    logits = FLOAT * MICRO_BATCH * config.vocab_size
    return int(held) + logits + work_bytes(config, length, exact, card=True) + BACKEND


def layers_on_card(config: BaseConfig, weights: int, sequences: int, length: int, exact: bool, room: int) -> int:
    """How many layers fit into ``room`` bytes of cards, where the output matrix counts as the last; 0 if none does."""
    numbers = range(config.layers + 1, 0, -1)
    fits = (many for many in numbers if card_bytes(config, weights, sequences, length, exact, many) <= room)
    return next(fits, 0)


def _memory(config: BaseConfig, sequences: int, length: int, exact: bool) -> int:
    return key_value_bytes(config, sequences, padded_length(length), exact)


def _parts(config: BaseConfig) -> tuple[float, float]:
    """The shares of a layer and of the output matrix in the bytes of the file; a tied matrix is copied to the card."""
    layer = sum(out * into for out, into in linear_sizes(config))
    matrix = config.vocab_size * config.hidden_size
    whole = config.layers * layer + (matrix if config.tie_word_embeddings else 2 * matrix)
    return layer / whole, matrix / whole


# How many bytes of memory sampler and trainer of a base take, part by part.
#
# Pure arithmetic; its constants were measured on bases of 42 to 315 million parameters.

MEBIBYTE = 1 << 20
SAMPLER_FLOOR, TORCH_FLOOR, VLLM_FLOOR = 60 * MEBIBYTE, 250 * MEBIBYTE, 700 * MEBIBYTE
"""Bytes of the interpreter and libraries of a worker with llama.cpp, with torch, and with vLLM."""
SPARE = 2
"""Sequences that the sampler keeps for scoring."""
RANK = 16
"""The usual rank of adapters."""
VERSIONS = 3
"""Versions of a policy that the sampler holds at the same time: one more than the default ``max_staleness``."""
FUSED = 2
"""Size of an adapter in the torch sampler, in adapters: layers with the same input share one block-diagonal matrix."""
COPIES, STEPPING = 4, 10
"""What the trainer holds of each policy, and what it takes besides while one makes a step; both in adapters."""
EPISODES, NOTED = 64, 13
"""Episodes of a step that a policy remembers for several epochs, and bytes for each of their tokens."""
GAPS = 256 * MEBIBYTE
"""Bytes of gaps between blocks of memory, which passes of different shapes leave in the trainer."""
WHOLE_BLOCK = 256
"""Values that the smaller types store together; rows of another length get finer types."""
FINER = {"q6_k": 8.5, "q5_k_m": 6.5, "q4_k_m": 5.6}
"""Bits per weight where rows are no multiple of ``WHOLE_BLOCK``."""


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
    """Whether there is a trainer beside the sampler."""
    trainers: int = 1
    """How many training workers there are, if any: each has the base, and the policies are divided among them."""
    precision: str = "f32"
    """How a trainer on the processor keeps the base: ``f32`` or ``bf16``."""


def weight_bytes(config: BaseConfig, parameters: int, weights: str) -> int:
    """Bytes of the file that llama.cpp reads; the smaller types keep the embedding finer than the rest."""
    whole = config.hidden_size % WHOLE_BLOCK == 0
    bits = BITS[weights] if whole else FINER.get(weights, BITS[weights])
    finest = max(bits, BITS["q6_k"] if whole else FINER["q6_k"])
    embedding = min(parameters, config.vocab_size * config.hidden_size * (1 if config.tie_word_embeddings else 2))
    return int((embedding * finest + (parameters - embedding) * bits) / 8)


def needs(
    wanted: Wanted, weights: str, sequences: int, context: int, room: int, slots: int
) -> tuple[tuple[str, int], ...]:
    """(what, in words; bytes) of every part for these choices; ``room`` is what a training pass may take."""
    trainer = _trainer(wanted, context, room, slots) if wanted.trains else ()
    vllm = wanted.sampler == "vllm"
    sampler = _vllm(wanted, sequences, context) if vllm else _sampler(wanted, weights, sequences, context)
    return (*sampler, *trainer)


def slot_bytes(config: BaseConfig, context: int) -> int:
    """Bytes of the trainer's memory that a policy of the usual rank takes."""
    return policy_bytes(config, RANK, context)


def policy_bytes(config: BaseConfig, rank: int, context: int) -> int:
    """Bytes of the trainer's memory that a policy takes: its vectors, and what several epochs remember of a step."""
    return COPIES * adapter_bytes(config, rank) + EPISODES * NOTED * context


def version_bytes(config: BaseConfig, rank: int, torch: bool) -> int:
    """Bytes of the sampler's memory that a version takes."""
    return (FUSED if torch else 1) * adapter_bytes(config, rank)


def torch_work_bytes(config: BaseConfig, length: int, half: bool = False) -> int:
    """Bytes of the torch sampler's buffers, with the base in bfloat16 where ``half``.

    It computes ``PREFILL`` tokens together, but the attention of each prompt by itself: with all its scores where it is
    short, else in tiles.
    """
    layer = PREFILL * (4 * config.intermediate_size + 8 * config.hidden_size)
    short = min(length, TILED_HALVED if half else TILED)
    tiled = 6 * min(length, PREFILL) * config.heads * config.head_dim
    return FLOAT * (layer + short * PREFILL + max(3 * config.heads * short * short, tiled))


def _sampler(wanted: Wanted, weights: str, sequences: int, context: int) -> Iterator[tuple[str, int]]:
    config, torch, half = wanted.config, wanted.sampler == "torch", weights == BFLOAT16
    held, length = sequences + sequences % 2 + SPARE, context if torch else padded_length(context)
    exact = (torch or wanted.exact) and not half
    stored = nearest(8 * wanted.gguf_bytes / wanted.parameters) if wanted.gguf_bytes else weights
    rounded = half if torch else halves_memory(stored)
    yield (
        "the sampler's weights",
        wanted.gguf_bytes or weight_bytes(config, wanted.parameters, weights) + (_second_table(config) if half else 0),
    )
    yield "keys and values of conversations", key_value_bytes(config, held, length, exact and not rounded)
    yield "the sampler's logits", logits_bytes(config, held)
    work = torch_work_bytes(config, length, half) if torch else work_bytes(config, length, exact, half=rounded)
    yield "what the sampler computes with", work
    yield "adapters in the sampler", VERSIONS * wanted.tasks * version_bytes(config, RANK, torch)
    yield "the sampler's program", TORCH_FLOOR if torch else SAMPLER_FLOOR


def _second_table(config: BaseConfig) -> int:
    """Bytes of the output matrix in bfloat16 where it is the embedding, too: products need it in an order of its own,
    in which rows cannot be looked up."""
    return int(config.vocab_size * config.hidden_size * BITS[BFLOAT16] / 8) if config.tie_word_embeddings else 0


def _vllm(wanted: Wanted, sequences: int, context: int) -> Iterator[tuple[str, int]]:
    """The parts of vLLM on the processor, in float32."""
    config, rank, versions = wanted.config, rank_class(wanted.largest_rank), VERSIONS * wanted.tasks
    yield "the sampler's weights", FLOAT * wanted.parameters
    yield "keys and values of conversations", cache_bytes(config, sequences, context, "cpu")
    yield "the sampler's logits", logits_bytes(config, sequences)
    yield "what the sampler computes with", gathered_bytes(config, rank, sequences, context)
    slots = slots_bytes(config, rank, slots_for(versions), "cpu")
    yield "adapters in the sampler", slots + versions * adapter_bytes(config, RANK)
    yield "the sampler's program", VLLM_FLOOR


def _trainer(wanted: Wanted, context: int, room: int, slots: int) -> Iterator[tuple[str, int]]:
    config, workers = wanted.config, wanted.trainers
    adapter = adapter_bytes(config, RANK)
    value, kept = (2, HALVED) if wanted.precision == BFLOAT16 else (FLOAT, EXACT)
    yield "the trainer's weights", workers * value * wanted.parameters
    prepared = value * max(out * into for out, into in linear_sizes(config))  # a matrix in the kernels' order
    # a step reuses the memory of a pass
    yield "a training pass", workers * max(pass_bytes(config, context, room, kept) + prepared, STEPPING * adapter)
    yield "gaps in the trainer's memory", workers * GAPS
    # the setting is of each trainer
    held = slots * workers if wanted.slots else slots
    yield "adapters and their moments in the trainer", held * slot_bytes(config, context)
    yield "the trainer's program", workers * TORCH_FLOOR


# Plans memory before a base is loaded: whether it fits, and with how many conversations of which length.
#
# Pure arithmetic over ``needs``; knows no machine.

SMALL = 64 << 20
"""Bytes of float32 weights up to which the sampler, too, keeps a base in float32."""
LONG = 8192
"""Context length in tokens from which on a base counts as made for long contexts."""
CONTEXTS = (2048, 1024, 512)
"""Context lengths to choose from where the settings have none; those before the last only for bases made for long ones.

Longer ones would fill the memory of a machine that others use, too: a person has to ask for them."""
LEAST, STEP = 8, 8
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
    """How the sampler keeps the base's matrices, one of ``precision.PRECISIONS`` or ``BFLOAT16``."""
    room: int
    """Bytes that a training pass may take, unless one sequence alone needs more."""
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
    sequences, contexts, precisions = _sequences(wanted), _contexts(wanted), _precisions(wanted)
    for context in contexts:
        for count in sequences:
            if count >= ENOUGH:
                for slots in _slots(wanted):
                    yield _plan(wanted, precisions[0], count, context, ROOMS[0], slots)
    for count in sequences:
        if count <= ENOUGH or wanted.sequences:
            for room in ROOMS:
                for weights in precisions:
                    for slots in _slots(wanted):
                        yield _plan(wanted, weights, count, contexts[-1], room, slots)


def _plan(wanted: Wanted, weights: str, sequences: int, context: int, room: int, slots: int) -> MemoryPlan:
    held = 0 if wanted.slots else slots * slot_bytes(wanted.config, context)
    parts = needs(wanted, weights, sequences, context, room, slots)
    return MemoryPlan(sequences, context, weights, room, slots, held, parts)


def _slots(wanted: Wanted) -> tuple[int, ...]:
    if wanted.slots:
        return (min(wanted.slots, wanted.tasks),)
    return tuple(sorted({max(min(wanted.tasks, FEW_SLOTS), wanted.tasks >> half) for half in range(10)}, reverse=True))


def _precisions(wanted: Wanted) -> tuple[str, ...]:
    """The precisions to choose from, the preferred one first.

    A base that is larger than the caches is limited by memory bandwidth with few conversations, and by arithmetic with
    many: with one row, eight bits for each weight are up to 2.4 times as fast as 32, with 32 rows only as fast. So
    sixteen bits come first, which are as exact as 32 but for 0.001 nats, and eight where memory is short.
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
    own = wanted.config.context_length
    if wanted.context:
        return (min(wanted.context, own),)
    return CONTEXTS if own >= LONG else (min(CONTEXTS[-1], own),)


def _sequences(wanted: Wanted) -> tuple[int, ...]:
    large = wanted.weights == BFLOAT16  # as many as with llama.cpp: rows cost time then, and conversations memory
    most = SAMPLERS["llama.cpp" if large else wanted.sampler].conversations
    return (wanted.sequences,) if wanted.sequences else tuple(range(most, LEAST - 1, -STEP))


def _refusal(wanted: Wanted, free: int) -> BaseModelError:
    least = least_plan(wanted)
    (first, first_size), (second, second_size) = least.lines()[:2]
    return BaseModelError(
        f"The base needs {_size(least.total)} of memory for {least.sequences} conversations of {least.context} tokens, "
        f"most of it for {first} ({_size(first_size)}) and {second} ({_size(second_size)}); "
        f"{_size(free)} are free on this machine.",
        _ways_out(wanted, free),
    )


def _ways_out(wanted: Wanted, free: int) -> str:
    """A hint with changes of the settings that would fit, the smallest changes first."""
    found = []
    for words, other in _alternatives(wanted):
        plan = _best(other, free)
        if plan is not None:
            found.append(words.format(plan=plan))
    if not found:
        return "Choose a smaller base, or free some memory."
    return f"In marlaas.toml, {', or '.join(found[:2])} would fit; so would a smaller base."


def _alternatives(wanted: Wanted) -> Iterator[tuple[str, Wanted]]:
    """Changes of the settings, first one at a time, then all together."""
    free_choice = replace(wanted, sequences=0, context=0)
    if wanted.sequences:
        yield "`sequences = {plan.sequences}`", replace(wanted, sequences=0)
    if wanted.context:
        yield "`context = {plan.context}`", replace(wanted, context=0)
    precise = wanted.weights != "auto" and SAMPLERS[wanted.sampler].gguf and not wanted.gguf_bytes
    if precise:
        yield '`weights = "{plan.weights}"`', replace(wanted, weights="auto")
    if wanted.tasks > 1:
        yield "`tasks = 1` under [engine]", replace(wanted, tasks=1)
    if wanted.slots:
        yield "`slots = 0` under [training]", replace(wanted, slots=0)
    words = "`sequences = {plan.sequences}` with `context = {plan.context}`"
    if wanted.sequences and wanted.context:
        yield words, free_choice
    if precise and (wanted.sequences or wanted.context):
        yield f'{words} and `weights = "{{plan.weights}}"`', replace(free_choice, weights="auto")


def _size(size: int) -> str:
    return f"{size / 1e9:.1f} GB"
