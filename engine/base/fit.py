"""Plans memory before a base is loaded: whether it fits, and with how many conversations of which length.

Pure arithmetic over ``needs``; knows no machine.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from ..errors import BaseModelError
from .needs import Wanted, needs, slot_bytes
from .precision import BFLOAT16, PRECISIONS
from .samplers import SAMPLERS
from .sizes import FLOAT, PASS_BYTES

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
    """The best plan that takes at most ``free`` bytes. Raises ``BaseModelError`` where not even the least one fits.

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
