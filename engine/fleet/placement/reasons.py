"""The sentences of a plan: what was decided, and why. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence

from ...base import BFLOAT16, FLOAT, SMALL, Wanted
from ...devices import Cpu, EnvironmentHost, Gpu, Place, SamplerAssignment, Software, TrainerAssignment, UsableNode
from .capacity import Card, SharedCard, size
from .choices import Choices, CopySpeed, NamedDevices, Times, listed
from .processor import decides_precision

BASES = {"f32": "float32", "bf16": "bfloat16", "nf4": "four bits"}
"""How the trainer keeps the base."""
SHARED = {
    "base": "both over one copy of the base",
    "memory": "each with a part of its memory",
}
"""How a card is shared, by ``Sharing``."""
NO_CARD = "No GPU: sampling and training share the CPU."
NO_ROOM = "The best copy of the base for sampling here needs more memory than training leaves; a smaller one is used."
CARDS_LEFT = "`samplers` under [rollout] leaves the cards to others."
BY_KIND = "Cards with more bandwidth sample, cards with more arithmetic train, as far as that goes."


def too_small(wanted: Wanted) -> str:
    """Why cards are not used for a small base."""
    return (
        f"The cards are left to others: this base has {wanted.parameters / 1e6:.1f} million parameters, and up to "
        f"{SMALL / FLOAT / 1e6:.0f} million the processor is about as fast; `devices` under [rollout] and [training] "
        "names cards all the same."
    )


def cards(gpus: Sequence[Gpu]) -> str:
    """A few cards by label: ``gpu 0, gpu 1 and gpu 3``."""
    return listed([gpu.label for gpu in gpus])


def sampler_on_processor(sampler: SamplerAssignment, cpu: Cpu) -> str:
    """Where the sampler on the processor ``cpu`` runs."""
    stored = "bfloat16" if sampler.weights == BFLOAT16 else sampler.weights
    over = f" over the base in {stored}" if stored else ""
    fast = sampler.weights == BFLOAT16 and cpu.rates is not None
    gain = (
        f", which this processor multiplies {cpu.rates.gain:.1f} times as fast as float32" if fast and cpu.rates else ""
    )
    return f"Sampling takes {cores(sampler.place)}, with {_kind(sampler.kind)}{over}{gain}."


def measured_copies(copies: Sequence[CopySpeed]) -> Iterator[str]:
    """What decided about the sampler's copy of the base."""
    if len(copies) > 1:
        figures = "; ".join(f"{speed.copy} {speed.seconds:.2g} s, gap {speed.gap:.2g}" for speed in copies)
        yield f"Sampling for a step of the default task was measured here: {figures}."


def trainer_on_processor(trainer: TrainerAssignment, cpu: Cpu, wanted: Wanted, choices: Choices) -> Iterator[str]:
    """Where the trainer on the processor ``cpu`` runs, and why it keeps the base in bfloat16 or not."""
    yield f"Training takes {cores(trainer.place)}, over the base in {BASES[trainer.precision]}."
    gain = cpu.rates.gain if cpu.rates else 0.0
    sentences = (
        (cpu.rates is None, "Whether bfloat16 is faster here is not measured: `marlaas doctor --measure` does."),
        (
            not gain,
            "The trainer's base is in float32: bfloat16 is multiplied wrongly here, or not by oneDNN, which a limit of"
            " the address space (`ulimit -v`) rules out.",
        ),
        (trainer.precision != "bf16", "This processor has no fast bfloat16; the trainer uses float32."),
        (True, f"The trainer's base is in bfloat16: this processor multiplies it {gain:.1f} times as fast as float32."),
    )
    if decides_precision(wanted.parameters, choices.precision):
        yield next(sentence for holds, sentence in sentences if holds)


def samplers_on_cards(
    samplers: Sequence[SamplerAssignment], on: Sequence[Card], shared: SharedCard | None, software: Software
) -> str:
    """Which samplers run on the cards of a machine; all are of one kind."""
    kind, gpus, memory = samplers[0].kind, [card.gpu for card in on], min(own.place.memory for own in samplers)
    rooms = [
        card.room.conversations(own.place.memory) for own, card in zip(samplers, on, strict=True) if not own.sharing
    ]
    count = min([*rooms, *([shared.conversations] if shared else [])])
    version = f" {software.vllm}" if kind == "vllm" else ""
    weights = " or ".join(dict.fromkeys(own.weights for own in samplers if own.weights))
    stored = f", the base in {weights}," if weights else ""
    each = "" if len(gpus) == 1 else " or more on each"
    room = f"room for {count} conversations at their longest"
    return f"{_kind(kind)}{version} samples on {_on(gpus)}{stored} with {size(memory)}{each}: {room}."


def trainer_on_cards(trainer: TrainerAssignment, gpus: Sequence[Gpu]) -> str:
    """Where a trainer on cards runs, and how it keeps the base."""
    base = (
        f"over the base in {BASES[trainer.precision]}{' that the sampler holds' if trainer.sharing == 'base' else ''}"
    )
    each = " beside it" if trainer.sharing == "base" else "" if len(gpus) == 1 else " on each"
    return f"Training is on {_on(gpus)}, {base}, with {size(trainer.place.memory)}{each}."


def shared(gpu: Gpu, way: SharedCard, choices: Choices) -> Iterator[str]:
    """Why a card is shared as it is."""
    yield f"Sampler and trainer share {gpu.label}, {SHARED[way.sharing]}: room for {way.conversations} conversations."
    if choices.share != "auto":
        yield f'That is what `share = "{choices.share}"` under [resources] asks for.'
    elif way.sharing == "base":
        yield (
            "One copy was shown to work on a processor and not yet on a card: sampler and trainer are compared at "
            'every version, and `share = "memory"` under [resources] gives each its own.'
        )
    elif "base" in choices.without:
        yield "One copy for both did not work here when it was tried."


def work_ratio(times: Times) -> str:
    """How much work the stages are, in words."""
    return f"sampling takes about {times.sampling / times.training:.1f} times the work of training"


def cards_left_out(
    cards: Sequence[Card],
    used: Collection[str],
    processor: tuple[bool, bool],
    named: NamedDevices,
    software: Software,
) -> Iterator[str]:
    """Cards of a machine that do nothing, or less than they could; ``processor``: whether it samples, and trains."""
    named_stages = named.rollout is not None, named.training is not None
    forced = any(stage and name for stage, name in zip(processor, named_stages, strict=True))
    for card in cards:
        why = "; ".join(dict.fromkeys(clause for clause in (card.no_sampler, card.no_trainer) if clause))
        if card.gpu.uuid not in used:
            yield f"{_on([card.gpu])} is not used: {why or 'it would add too little, or it needs another sampler'}."
        elif any(processor) and not forced:
            yield f"{card.gpu.label} does no more: {why or 'sampler and trainer do not fit on it together'}."
    missing = software.vllm_reason if processor[0] else "", software.torch_reason if processor[1] else ""
    yield from (reason for reason, name in zip(missing, named_stages, strict=True) if cards and reason and not name)


def next_to_cards(samplers: Sequence[SamplerAssignment], gain: float | None, least: float) -> Iterator[str]:
    """Why the processor samples next to cards, or why not: ``samplers`` are those on it."""
    adds = "" if gain is None else f"by the measured rates it adds {gain:.0%} to the cards' speed"
    for sampler in samplers:
        why = adds or "`devices` under [rollout] names it, and its gain is not measured"
        yield f"The processor samples beside them, with {_kind(sampler.kind)} on {cores(sampler.place)}: {why}."
    if adds and not samplers:
        yield (
            f"The processor does not sample beside them: {adds}. It does unasked from {least:.0%} on, with two cores"
            " and enough memory; `devices` under [rollout] may name it."
        )


def stages_over_nodes(sampling: Sequence[str], training: Sequence[str], times: Times) -> str:
    """Which nodes, by their names, sample and which train."""
    if list(sampling) == list(training):
        return f"{_verb(sampling, 'samples and trains', 'sample and train')}: {work_ratio(times)}."
    return f"{_verb(sampling, 'samples', 'sample')}, and {_verb(training, 'trains', 'train')}: {work_ratio(times)}."


def _verb(names: Sequence[str], singular: str, plural: str) -> str:
    who = f"{len(names)} nodes" if len(names) > 6 else listed(names)
    return f"{who} {singular if len(names) == 1 else plural}"


def nodes_left_out(nodes: Sequence[UsableNode]) -> list[str]:
    """A sentence on each node that drains or cannot be used."""
    draining = [f"{node.name} drains, so it gets nothing new." for node in nodes if node.draining]
    refused = [node for node in nodes if node.refused and not node.draining]
    return draining + [f"{node.name} is not used: {node.refused}" for node in refused]


def environments_on(hosts: Sequence[EnvironmentHost]) -> str:
    """Where environments run."""
    names = listed([f"{host.name} ({host.cores})" for host in hosts]) if len(hosts) <= 6 else f"{len(hosts)} nodes"
    total = sum(host.cores for host in hosts)
    return f"Environments and scores run on {names}, in up to {total} processes that compute."


def cores(place: Place) -> str:
    """The cores of a worker on the processor."""
    if not place.cores:
        return "the processor"
    return "1 core" if len(place.cores) == 1 else f"{len(place.cores)} cores"


def _on(gpus: Sequence[Gpu]) -> str:
    """``gpu 0 (NVIDIA H200)``, or several by label."""
    return cards(gpus) if len(gpus) > 1 or not gpus[0].name else f"{gpus[0].label} ({gpus[0].name})"


def _kind(kind: str) -> str:
    return {"vllm": "vLLM", "torch": "the torch sampler"}.get(kind, kind)
