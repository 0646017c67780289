"""The plan in words: sentences on what was decided, and why, with the numbers that decided it. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence

from ...base import BFLOAT16, FLOAT, SMALL, Wanted
from ...devices import Cpu, Machine, SamplerAssignment, Software, TrainerAssignment
from .capacity import Card, chosen
from .processor import decides_precision
from .sharing import LEAST_GAIN, Beside, Division, Way
from .wishes import Choices, CopySpeed, Times, Wishes
from .words import SHARED, card, cards, cores, size, times

BASES = {"f32": "float32", "bf16": "bfloat16", "nf4": "four bits"}
"""How the trainer keeps the base."""


def too_small(wanted: Wanted) -> str:
    """Why cards are not used for a small base."""
    return (
        f"The cards are left to others: this base has {wanted.parameters / 1e6:.1f} million parameters, and up to "
        f"{SMALL / FLOAT / 1e6:.0f} million the processor is about as fast; `devices` under [rollout] and [training] "
        "names cards all the same."
    )


def no_cards() -> str:
    """For a machine without cards that may be used."""
    return "No GPU: sampling and training share the CPU."


def on_processor(assignment: SamplerAssignment | TrainerAssignment, stage: str, cpu: Cpu | None = None) -> str:
    """Where a worker on the processor ``cpu`` runs; the sentence begins with ``stage``."""
    if isinstance(assignment, SamplerAssignment) and assignment.weights == BFLOAT16:
        rates = cpu.rates if cpu else None
        gain = f", which this processor multiplies {times(rates.gain)} as fast as float32" if rates else ""
        return f"{stage} takes {cores(assignment.place)}, with the torch sampler over the base in bfloat16{gain}."
    with_ = (
        f"with {_kind(assignment.kind)}{f' over the base in {assignment.weights}' if assignment.weights else ''}"
        if isinstance(assignment, SamplerAssignment)
        else f"over the base in {BASES[assignment.precision]}"
    )
    return f"{stage} takes {cores(assignment.place)}, {with_}."


def measured(copies: Sequence[CopySpeed]) -> Iterator[str]:
    """What decided about the sampler's copy of the base."""
    if len(copies) > 1:
        figures = "; ".join(f"{one.copy} {one.seconds:.2g} s, gap {one.gap:.2g}" for one in copies)
        yield f"Sampling for a step of the default task was measured here: {figures}."


def no_room() -> str:
    """Why the sampler does not keep the copy that would be best on this processor."""
    return "The best copy of the base for sampling here needs more memory than training leaves; a smaller one is used."


def bfloat16(assignment: TrainerAssignment, cpu: Cpu, wanted: Wanted, choices: Choices) -> Iterator[str]:
    """Why a trainer on the processor keeps the base in bfloat16 or not, where that was to be decided."""
    if not decides_precision(wanted.parameters, choices.precision):
        return
    if cpu.rates is None:
        yield "Whether bfloat16 is faster here is not measured: `marlaas doctor --measure` does."
        return
    if not cpu.rates.bfloat16:
        yield (
            "The trainer's base is in float32: bfloat16 is multiplied wrongly here, or not by oneDNN, which a limit of"
            " the address space (`ulimit -v`) rules out."
        )
        return
    if assignment.precision == "bf16":
        fast = f"this processor multiplies bfloat16 {times(cpu.rates.gain)} as fast as float32"
        yield f"The trainer's base is in bfloat16: {fast}."
    else:
        yield "This processor has no fast bfloat16; the trainer uses float32."


def samplers(
    assignments: Sequence[SamplerAssignment], on: Sequence[Card], way: Way | None, software: Software
) -> Iterator[str]:
    """Which samplers run on cards; those that are alike in one sentence."""
    alike: dict[tuple[str, str, str, int, int], list[Card]] = {}
    for assignment, where in zip(assignments, on, strict=True):
        rooms = [
            room for kind, room in where.samplers if kind == assignment.kind and assignment.weights in ("", room.stored)
        ]
        memory = assignment.place.memory
        count = way.conversations if way and assignment.sharing else chosen(rooms, memory).conversations(memory)
        alike.setdefault((assignment.kind, assignment.weights, where.gpu.name, memory, count), []).append(where)
    for (kind, weights, _, memory, count), found in alike.items():
        version = f" {software.vllm}" if kind == "vllm" else ""
        stored = f", the base in {weights}," if weights else ""
        each = "" if len(found) == 1 else " on each"
        yield (
            f"{_kind(kind)}{version} samples on {_on(found)}{stored} with {size(memory)}{each}: room for {count} "
            "conversations at their longest."
        )


def beside(found: Beside) -> Iterator[str]:
    """Why the processor samples beside cards, or why not."""
    adds = "" if found.gain is None else f"by the measured rates it adds {found.gain:.0%} to the cards' speed"
    if found.kind:
        why = adds or "`devices` under [rollout] names it, and its gain is not measured"
        yield f"The processor samples beside them, with {_kind(found.kind)} on {cores(found.place)}: {why}."
        if found.gain is not None and found.gain < LEAST_GAIN:
            yield "That is little; without the processor in `devices` under [rollout] the cards sample alone."
    elif found.lacks:
        yield (
            "The processor does not sample beside them, though by the measured rates it would add"
            f" {found.gain:.0%} to the cards' speed: it lacks {found.lacks}."
        )
    elif adds:
        yield (
            f"The processor does not sample beside them: {adds}, and from {LEAST_GAIN:.0%} on it is used unasked;"
            " `devices` under [rollout] may name it all the same."
        )


def trainer(assignment: TrainerAssignment, on: Sequence[Card], way: Way | None) -> str:
    """Where a trainer on cards runs, and how it keeps the base."""
    where = _on(on)
    base = f"over the base in {BASES[assignment.precision]}"
    if way and way.sharing == "base":
        return f"Training is on {where}, {base} that the sampler holds, with {size(assignment.place.memory)} beside it."
    each = "" if len(on) == 1 else " on each"
    return f"Training is on {where}, {base}, with {size(assignment.place.memory)}{each}."


def divided(division: Division, able: int, stages: Times) -> Iterator[str]:
    """Why the cards are divided so between the stages, where several are ``able`` to do something."""
    count = len({each.gpu.uuid for each in (*division.rollout, *division.training)})
    if able < 2:
        return
    known = "as measured" if stages.measured else "as assumed until it is measured"
    known = "beside what other nodes do" if stages.beside else known
    proportion = f"sampling takes {times(stages.sampling / stages.training)} the work of training, {known}"
    if division.shared:
        others = len(division.rollout) - 1
        more = f" and {others} more {'samples' if others == 1 else 'sample'}" if others else ""
        slow = f"{proportion}, and apart the stages would be less than half as fast"
        why = slow if division.apart else "no other division is possible"
        yield f"{division.shared.gpu.label} does both{more}: {why}."
    else:
        yield f"{len(division.rollout)} of {count} cards sample and {len(division.training)} train: {proportion}."
    if len({each.rates for each in (*division.rollout, *division.training)}) > 1:
        yield "Cards with more bandwidth sample, cards with more arithmetic train, as far as that goes."


def shared(found: Sequence[Way], on: Card | None, choices: Choices) -> Iterator[str]:
    """Why a card is shared as it is, by the first of the ways that were ``found``."""
    if not found or on is None:
        return
    way = found[0]
    other = next((other for other in found if other.sharing != way.sharing and other.kind == way.kind), None)
    yield f"Sampler and trainer share {on.gpu.label}, {SHARED[way.sharing]}{_than(way, other)}."
    if choices.share != "auto":
        yield f'That is what `share = "{choices.share}"` under [resources] asks for.'
    elif way.sharing == "base":
        yield (
            "One copy was shown to work on a processor and not yet on a card: sampler and trainer are compared at "
            'every version, and `share = "memory"` under [resources] gives each its own.'
        )
    elif "base" in choices.without:
        yield "One copy for both did not work here when it was tried."


def _than(way: Way, other: Way | None) -> str:
    if other is None:
        return ": no other way fits"
    return f": room for {way.conversations} conversations, and for {other.conversations} with {SHARED[other.sharing]}"


def no_sampler(on: Sequence[Card], wishes: Wishes, software: Software) -> Iterator[str]:
    """Why nothing samples on the cards that train."""
    if wishes.rollout is not None:
        yield "`devices` under [rollout] keeps the sampler on the processor."
        return
    if not software.vllm and software.vllm_reason:
        yield software.vllm_reason
    for each in on:
        if each.no_sampler:
            yield f"Nothing samples on {each.gpu.label}: {each.no_sampler}."
        else:
            yield f"Sampler and trainer of this base do not fit on {each.gpu.label} together."


def no_trainer(on: Sequence[Card], wishes: Wishes, software: Software) -> Iterator[str]:
    """Why the trainer is on no card."""
    if wishes.training is not None:
        yield "`devices` under [training] keeps the trainer on the processor."
        return
    if not software.torch_cuda and software.torch_reason:
        yield software.torch_reason
    for each in on:
        if each.no_trainer:
            yield f"Nothing trains on {each.gpu.label}: {each.no_trainer}."


def nothing_reached(machine: Machine, software: Software) -> Iterator[str]:
    """Why a machine with cards computes on its processor alone."""
    if machine.gpus:
        yield from dict.fromkeys(reason for reason in (software.vllm_reason, software.torch_reason) if reason)


def left_out(on: Sequence[Card], used: Collection[str], kind: str) -> Iterator[str]:
    """Cards that do nothing; ``kind`` is what samples on the others."""
    for each in on:
        if each.gpu.uuid not in used:
            other = kind and kind not in [own for own, _ in each.samplers]
            sampling = each.no_sampler or (f"{_kind(kind)} does not serve it" if other else "")
            training = each.no_trainer or ("it is too weak to train beside the others" if sampling else "")
            why = dict.fromkeys(clause for clause in (sampling, training) if clause)
            yield f"{card(each.gpu)} is not used: {'; '.join(why) or 'it would add nothing to the others'}."


def _on(found: Sequence[Card]) -> str:
    return card(found[0].gpu) if len(found) == 1 else cards([each.gpu for each in found])


def _kind(kind: str) -> str:
    return {"vllm": "vLLM", "torch": "the torch sampler"}.get(kind, kind)
