"""The decision: which sampler and which trainer are started on which device of which machine, and why. Pure.

The first row that fits is taken. Devices that ``marlaas.toml`` names hold in every row.

| there is | sampling | training |
|---|---|---|
| a small base, and no card is named | the processors | the processors |
| several cards for both stages | those with more bandwidth | those with more arithmetic |
| one card for both stages, or one that is far faster than the others | that card, and the others | that card |
| cards for training only | the processors | the cards |
| cards for sampling only | the cards | the strongest processor |
| several processors | those with fewer cores, as many as sampling needs | those with more cores |
| one processor | half of the cores | the other half |

A plan takes no more than a card's free memory less a reserve. What fits no card is computed on the processor, so every
machine has a plan. Machines that drain, are refused, or stand behind a slow link are left out, with the reason.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace

from ...devices.machine import (
    Cpu,
    EnvironmentHost,
    Gpu,
    Place,
    Placement,
    Precision,
    SamplerAssignment,
    SamplerKind,
    Sharing,
    Software,
    TrainerAssignment,
    UsableNode,
)
from ...errors import ConfigError
from ...models.config import BFLOAT16, SAMPLERS
from ...models.memory import FLOAT, RANK, SMALL, Wanted, adapter_bytes
from .capacity import (
    KINDS,
    Card,
    SharedCard,
    least_memory,
    look,
    rates_of_cores,
    sampling_speed,
    shared_card,
    size,
    training_speed,
)
from .choices import (
    SAMPLER,
    TRAINER,
    Choices,
    CopySpeed,
    NamedDevices,
    Times,
    allowed,
    choices_by_node,
    copies,
    decides_precision,
    halves,
    is_small,
    listed,
    named_devices,
    numbered_name,
    processor_precision,
    processor_sampler,
    refuse,
    spread,
)

# The sentences of a plan: what was decided, and why. Pure.

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


def cards_in_words(gpus: Sequence[Gpu]) -> str:
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
    return f"Sampling takes {cores_in_words(sampler.place)}, with {_kind(sampler.kind)}{over}{gain}."


def measured_copies(copies: Sequence[CopySpeed]) -> Iterator[str]:
    """What decided about the sampler's copy of the base."""
    if len(copies) > 1:
        figures = "; ".join(f"{speed.copy} {speed.seconds:.2g} s, gap {speed.gap:.2g}" for speed in copies)
        yield f"Sampling for a step of the default task was measured here: {figures}."


def trainer_on_processor(trainer: TrainerAssignment, cpu: Cpu, wanted: Wanted, choices: Choices) -> Iterator[str]:
    """Where the trainer on the processor ``cpu`` runs, and why it keeps the base in bfloat16 or not."""
    yield f"Training takes {cores_in_words(trainer.place)}, over the base in {BASES[trainer.precision]}."
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


def why_shared(gpu: Gpu, way: SharedCard, choices: Choices) -> Iterator[str]:
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


def why_next_to_cards(samplers: Sequence[SamplerAssignment], gain: float | None, least: float) -> Iterator[str]:
    """Why the processor samples next to cards, or why not: ``samplers`` are those on it."""
    adds = "" if gain is None else f"by the measured rates it adds {gain:.0%} to the cards' speed"
    for sampler in samplers:
        why = adds or "`devices` under [rollout] names it, and its gain is not measured"
        where = f"{_kind(sampler.kind)} on {cores_in_words(sampler.place)}"
        yield f"The processor samples beside them, with {where}: {why}."
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


def cores_in_words(place: Place) -> str:
    """The cores of a worker on the processor."""
    if not place.cores:
        return "the processor"
    return "1 core" if len(place.cores) == 1 else f"{len(place.cores)} cores"


def _on(gpus: Sequence[Gpu]) -> str:
    """``gpu 0 (NVIDIA H200)``, or several by label."""
    return cards_in_words(gpus) if len(gpus) > 1 or not gpus[0].name else f"{gpus[0].label} ({gpus[0].name})"


def _kind(kind: str) -> str:
    return {"vllm": "vLLM", "torch": "the torch sampler"}.get(kind, kind)


# How many training workers there are: several train several policies at the same time. Pure.
#
# FlexMARL (arXiv 2602.09578) binds devices to agents in the same way. Each worker has a base. All have as many
# threads, so that a policy has the same bits on each of them.

PAIR = 2
"""Cores of a trainer if the placement decides how many there are. Measured on two cores with the shipped base and short
prompts: a second thread makes a step 1.2 times as fast, a second trainer 1.8 times as many of them; a task that trains
alone is left the second thread."""
MOST_TRAINERS = 4
"""Trainers on a processor that the placement makes unasked: each has a base and its own program in memory."""


def with_trainers(placement: Placement, asked: int, small: bool, policies: int) -> Placement:
    """The placement with as many trainers in all as are ``asked`` for, or as pay; 0: the placement decides.

    ``small``: the base is so small that a pass gains little by further threads. Each card that trains has a trainer of
    its own while there are as many ``policies``: adapters need no exchange between trainers, and all cards hold the
    base in any case. A trainer that shares a device with a sampler stays the only one.
    """
    first, *_ = trainers = placement.trainers
    counts = [1] * len(trainers)
    total = asked or min(policies, sum(_useful(trainer.place, small) for trainer in trainers))
    while sum(counts) < total and not first.sharing:
        open_ = [n for n, own in enumerate(trainers) if not own.place.gpus or counts[n] < len(own.place.gpus)]
        if not open_:
            break
        counts[max(open_, key=lambda n: len(trainers[n].place.gpus or trainers[n].place.cores) / counts[n])] += 1
    parts = [part for own, count in zip(trainers, counts, strict=True) for part in _parts(own, count)]
    threads = min(len(part.place.cores) or 1 for part in parts)
    parts = [
        replace(part, name=numbered_name(TRAINER, number), place=replace(part.place, cores=part.place.cores[:threads]))
        for number, part in enumerate(parts, 1)
    ]
    sentences = list(placement.reasons)
    if asked > len(parts):
        cards = sum(len(trainer.place.gpus) for trainer in trainers)
        why = f"training has {cards} {'card' if cards == 1 else 'cards'}"
        why = "the trainer shares its device with a sampler" if first.sharing else why
        sentences.append(f"`trainers = {asked}` under [training] cannot be: {why}.")
    if len(parts) > len(trainers):
        sentences.append(_trainers_in_words(parts, asked))
    return replace(placement, trainer=parts[0], more=tuple(parts[1:]), reasons=tuple(sentences))


def _useful(place: Place, small: bool) -> int:
    """Trainers that pay."""
    return len(place.gpus) or (min(MOST_TRAINERS, max(1, len(place.cores) // PAIR)) if small else 1)


def _parts(trainer: TrainerAssignment, count: int) -> list[TrainerAssignment]:
    place, parts = trainer.place, []
    for number in range(count):
        gpus = place.gpus[len(place.gpus) * number // count : len(place.gpus) * (number + 1) // count]
        each, many = len(place.cores) // count, len(place.cores)
        own = place.cores[number * each : (number + 1) * each] if count > 1 else place.cores
        if not each and many:  # fewer cores than trainers: they share them
            own = (place.cores[number % many],)
        parts.append(replace(trainer, place=Place(own, gpus, place.memory)))
    return parts


def _trainers_in_words(parts: list[TrainerAssignment], asked: int) -> str:
    place = parts[0].place
    taken = {(part.node, core) for part in parts for core in part.place.cores}
    shared = cores_in_words(Place(tuple(range(len(taken)))))
    where = f"with {cores_in_words(place)} each" if len(taken) >= len(parts) else f"on {shared} that they share"
    where = "with cards of their own" if place.gpus else where if place.cores else "unpinned"
    why = "for adapters need no exchange between them" if place.gpus else "for a small base gains little by threads"
    why = f"as `trainers = {asked}` under [training] asks for" if asked else why
    return f"{len(parts)} trainers train different policies at the same time, {where}, {why}."


# The decision: which sampler and which trainer are started on which device of which machine, and why. Pure.
#
# The first row that fits is taken. Devices that ``marlaas.toml`` names hold in every row.
#
# | there is | sampling | training |
# |---|---|---|
# | a small base, and no card is named | the processors | the processors |
# | several cards for both stages | those with more bandwidth | those with more arithmetic |
# | one card for both stages, or one that is far faster than the others | that card, and the others | that card |
# | cards for training only | the processors | the cards |
# | cards for sampling only | the cards | the strongest processor |
# | several processors | those with fewer cores, as many as sampling needs | those with more cores |
# | one processor | half of the cores | the other half |
#
# A plan takes no more than a card's free memory less a reserve. What fits no card is computed on the processor, so
# every machine has a plan. Machines that drain, are refused, or stand behind a slow link are left out, with the
# reason.

PRECISIONS: tuple[Precision, ...] = ("bf16", "f32", "nf4")
"""How a trainer on cards keeps the base, the preferred way first; four bits are for cards that fit neither other."""
GAIN = 2.0
"""How many times as fast a division must be in which one device serves both stages, to be preferred to one that keeps
the stages apart: workers on one device hold each other up."""
DISTURBED = 0.5
"""Share of its sampling speed that a device keeps next to a trainer, if others sample too."""
LEAST_PART = 0.1
"""Share of the fastest device's speed at a stage that a device must have to take part unnamed, and share of the cards'
sampling speed that the processor must add: each sampler is compared with the trainer at every version."""
SLOW = 30.0
"""Seconds that the state of a policy may be on the way to a node that nobody names."""


@dataclass(frozen=True, eq=False)
class Site:
    """A machine that may be used, with what its user chose for it."""

    node: UsableNode
    choices: Choices
    named: NamedDevices
    samples: bool
    """Whether anything there may sample."""
    trains: bool
    cards: tuple[Card, ...]
    """Empty if the base is small, and no card is named."""

    @property
    def cpu(self) -> Cpu:
        """Its processor."""
        return self.node.machine.cpu

    @property
    def cores(self) -> tuple[int, ...]:
        """Cores for one stage: all of a node's; of the engine's machine all but one, which feeds cards and nodes."""
        cores = allowed(self.cpu)
        return cores if self.node.node else cores[1:]


@dataclass(frozen=True, eq=False)
class Device:
    """A card, or the processor of a site, with its speeds as multiples of a reference card's."""

    site: Site
    card: Card | None
    sampling: float
    """0: it cannot, or it may not."""
    training: float
    shared: SharedCard | None = None
    """How a card serves both stages; None: it cannot."""
    both: bool = False
    """Whether it has room for both stages."""

    @property
    def leaning(self) -> tuple[object, ...]:
        """Devices stand in a row from those that are better at sampling to those that are better at training.

        Of equal ones the stronger train, and then those of the engine's machine: states need not travel then.
        """
        ratio = self.training / self.sampling if self.sampling else math.inf
        card = (self.card.gpu.index, self.card.gpu.uuid) if self.card else (0, "")
        node = self.site.node
        return float(f"{ratio:.6g}"), self.training, not node.node, node.name, node.node, card


@dataclass(frozen=True, eq=False)
class Division:
    """Which devices sample, and which train."""

    sampling: Sequence[Device]
    training: Sequence[Device]
    speed: float
    """Of the slower stage, for the stages' times."""
    both: Device | None = None


def divide(devices: Sequence[Device], times: Times, most: int, together: bool = False) -> Division | None:
    """The division that trains on the most tokens; None if a stage has no device.

    At most ``most`` machines train. ``together``: one device has to serve both stages.
    """
    row = sorted(devices, key=lambda device: device.leaning)
    cuts = (
        Division(
            [device for device in row[:cut] if device.sampling],
            _trainable([device for device in row[cut:] if device.training], most),
            0.0,
        )
        for cut in range(0 if together else len(row))
    )
    apart = max((_rated(division, times) for division in cuts), key=_order, default=None)
    able = [device for device in devices if device.both and device.sampling and device.training]
    both = max((_with_both(device, devices, times) for device in able), key=_order, default=None)
    if both is None or (apart is not None and both.speed <= GAIN * apart.speed):
        return apart if apart is not None and apart.speed else None
    return both


def _order(division: Division) -> tuple[float, int]:
    return float(f"{division.speed:.9e}"), len(division.sampling)


def _rated(division: Division, times: Times) -> Division:
    sampling = math.fsum(device.sampling for device in division.sampling) / times.sampling
    return replace(
        division, speed=min(sampling, math.fsum(device.training for device in division.training) / times.training)
    )


def _with_both(device: Device, devices: Sequence[Device], times: Times) -> Division:
    """One device does both, in turns; all others that can sample do."""
    others = [other for other in devices if other is not device and other.sampling]
    own = device.sampling * (DISTURBED if others else 1.0)
    speed = (math.fsum(other.sampling for other in others) + own) / (
        times.sampling + own * times.training / device.training
    )
    speed = min(speed, device.training / times.training)
    return Division((device, *others), (device,), speed, device)


def _trainable(devices: Sequence[Device], most: int) -> list[Device]:
    """The devices of the ``most`` strongest machines; a process computes on one part of a divided card (MIG) only."""
    machines: dict[str, list[Device]] = {}
    for device in reversed(devices):
        machines.setdefault(device.site.node.node, []).append(device)
    for node, group in machines.items():
        whole = [device for device in group if device.card is None or device.card.gpu.part is None]
        machines[node] = whole or [max(group, key=lambda device: device.training)]
    strongest = sorted(machines.values(), key=lambda group: sum(device.training for device in group), reverse=True)
    return [device for group in strongest[:most] for device in group]


def place_over(
    nodes: Sequence[UsableNode],
    wanted: Wanted,
    choices: Choices | None = None,
    times: Times | None = None,
    trainers: int = 0,
    kinds: Sequence[SamplerKind] = (),
) -> Placement:
    """The placement, with one trainer at most on each machine (``with_trainers`` divides it).

    ``trainers`` is the number under [training], ``kinds`` are the ``samplers`` under [rollout] that are to be on
    processors. Raises ``ConfigError`` if no machine can be used, or if settings contradict each other or what there is.
    """
    choices, times = choices or Choices(), times or Times()
    nodes = sorted(nodes, key=lambda node: (bool(node.node), node.name, node.node))
    sites, left_out = _sites(nodes, wanted, choices, kinds)
    division = _best_division(sites, wanted, choices, times, min(trainers or wanted.tasks, wanted.tasks))
    several = len(sites) > 1
    samplers: list[SamplerAssignment] = []
    trained: list[TrainerAssignment] = []
    sentences: list[str] = []
    for site in _alike(sites, division, wanted):
        own_samplers, own_trainers, why = _assigned(site, division, wanted, times, kinds)
        samplers, trained = samplers + own_samplers, trained + own_trainers
        named = f"{site.node.name}: " if several else ""
        sentences += [f"{named}{sentence}" for sentence in (*why, *site.node.reasons)]
    overall = list(_overall(division, sites, times))
    sentences = [*overall, *sentences, *left_out] if several else [*sentences, *overall, *left_out]
    hosts = _hosts([site.node for site in sites], [*samplers, *trained]) if several or sites[0].node.node else ()
    sentences += [environments_on(hosts)] if len(hosts) > 1 else []
    named_samplers = tuple(replace(own, name=numbered_name(SAMPLER, n)) for n, own in enumerate(samplers, 1))
    first, *more = (replace(own, name=numbered_name(TRAINER, n)) for n, own in enumerate(trained, 1))
    return Placement(named_samplers, first, tuple(sentences), tuple(more), hosts)


def _sites(
    nodes: Sequence[UsableNode], wanted: Wanted, choices: Choices, kinds: Sequence[SamplerKind]
) -> tuple[list[Site], list[str]]:
    """The machines that may be used, and a sentence on each of the others."""
    usable = [node for node in nodes if not node.draining and not node.refused]
    if not usable:
        raise ConfigError(
            "No node can be used: all drain, or are refused.",
            "`marlaas cluster status` says why; `marlaas cluster undrain NODE` takes one back.",
        )
    sentences, by_node = nodes_left_out(nodes), choices_by_node(usable, choices)
    sites: list[Site] = []
    slow: list[Site] = []
    error = None
    for node in usable:
        own, samples, trains = by_node[node.node]
        try:
            named = named_devices(node.machine, node.software, own)
        except ConfigError as contradiction:
            error = contradiction
            sentences.append(f"{node.name} is not used: {error.message}")
            continue
        small = is_small(wanted.parameters) and named.rollout is named.training is None and own.sampler != "vllm"
        gpus = () if small or kinds else node.machine.gpus
        cards = tuple(look(gpu, node.machine, node.software, wanted, own) for gpu in gpus)
        refuse(
            *(
                (
                    bool(why) and card.gpu.uuid in (uuids or ()),
                    f"`devices` under [{table}] names {card.gpu.label}, which cannot {does}: {why}.",
                    "",
                )
                for card in cards
                for table, uuids, does, why in (
                    ("rollout", named.rollout, "sample", card.no_sampler),
                    ("training", named.training, "train", card.no_trainer),
                )
            )
        )
        far = node.link.seconds(1, adapter_bytes(wanted.config, RANK)) > SLOW
        far = far and not (choices.rollout and samples) and not (choices.training and trains)
        (slow if far else sites).append(Site(node, own, named, samples, trains, cards))
    if not sites and not slow and error:
        raise error
    for node in (site.node for site in slow if sites):
        seconds = node.link.seconds(1, adapter_bytes(wanted.config, RANK))
        sentences.append(f"{node.name} is not used: the state of a policy takes {seconds:.0f} s to get there.")
    return sites or slow, sentences


ROWS: tuple[tuple[SamplerKind | None, Precision | None], ...] = (
    *((kind, precision) for kind in KINDS for precision in PRECISIONS),
    *((None, precision) for precision in PRECISIONS),
    *((kind, None) for kind in KINDS),
    (None, None),
)
"""What samples on cards, and how trainers on cards keep the base, the preferred row first; None: on processors."""


def _best_division(sites: Sequence[Site], wanted: Wanted, choices: Choices, times: Times, most: int) -> Division:
    """The division by the first row that is possible. Raises ``ConfigError`` if none is."""
    together = any(site.named.same_card for site in sites)
    one_process = choices.sampler == "vllm" and choices.share == "base"
    for fitting in (True, False):  # what fits nowhere is placed all the same: the memory plan explains what is missing
        for kind, precision in ROWS:
            devices = _devices(sites, wanted, kind, precision, fitting)
            division = divide(devices, times, most, together or (one_process and (kind, precision) == (None, None)))
            if division:
                return division
    vllm = choices.sampler == "vllm" and any(site.node.machine.gpus for site in sites)
    key = f'`share = "{choices.share}"` under [resources]' if choices.share != "auto" else "`devices`"
    refuse(
        (
            vllm and not any(card.samplers for site in sites for card in site.cards),
            '`sampler = "vllm"` under [rollout] cannot be: no card that may be used serves this base with it.',
            'Write `sampler = "auto"`; `marlaas doctor` says what is wrong with each card.',
        ),
        (
            any(site.cards for site in sites),
            f"{key} cannot be: sampler and trainer of this base do not fit there together.",
            'Remove the key, or choose a smaller base, a shorter `context` or `precision = "nf4"`.',
        ),
    )
    raise ConfigError("`devices` names no node that can be used.", "`marlaas cluster status` lists them.")


def _devices(
    sites: Sequence[Site], wanted: Wanted, kind: SamplerKind | None, precision: Precision | None, fitting: bool
) -> list[Device]:
    """All cards and processors, with what a row has them do; ``fitting``: of several machines' processors only those
    with enough main memory."""
    devices = []
    for site in sites:
        machine, named, choices = site.node.machine, site.named, site.choices
        for every in site.cards:
            card, uuid = every.only(kind, precision), every.gpu.uuid
            samples = site.samples and bool(card.samplers) and (named.rollout is None or uuid in named.rollout)
            trains = site.trains and bool(card.trainers) and (named.training is None or uuid in named.training)
            sampling = sampling_speed(card.rates) if samples else 0.0
            training = training_speed(card.rates) if trains else 0.0
            shared = shared_card(card, wanted, choices) if samples and trains else None
            devices.append(Device(site, card, sampling, training, shared, shared is not None))
        sampler = copies(wanted, choices, site.cpu)[0].sampler
        allowed_here = not site.cards or choices.share == "auto"
        cards_only = named.rollout or (choices.sampler == "vllm" and machine.gpus)
        samples = kind is None and allowed_here and site.samples and not cards_only
        trains = precision is None and allowed_here and site.trains and not named.training
        samples, trains, both = (
            wish and (len(sites) == 1 or not fitting or least_memory(wanted, sampler, *stages) <= site.node.free)
            for wish, *stages in ((samples, True, False), (trains, False, True), (samples and trains, True, True))
        )
        rates = rates_of_cores(site.cpu, len(site.cores) or site.cpu.count)
        speeds = sampling_speed(rates) if samples else 0.0, training_speed(rates) if trains else 0.0
        devices.append(Device(site, None, *speeds, both=both))
    least_sampling = LEAST_PART * max(device.sampling for device in devices)
    least_training = LEAST_PART * max(device.training for device in devices)
    return [
        replace(
            device,
            sampling=device.sampling if device.site.choices.rollout or device.sampling >= least_sampling else 0.0,
            training=device.training if device.site.choices.training or device.training >= least_training else 0.0,
        )
        for device in devices
    ]


def _alike(sites: Sequence[Site], division: Division, wanted: Wanted) -> list[Site]:
    """The machines; if several train on processors, all keep the base in the same precision."""
    training = [device.site for device in division.training if device.card is None]
    if len({processor_precision(site.cpu, wanted, site.choices) for site in training}) < 2:
        return list(sites)
    return [replace(site, choices=replace(site.choices, precision="f32")) for site in sites]


def _assigned(
    site: Site, division: Division, wanted: Wanted, times: Times, kinds: Sequence[SamplerKind]
) -> tuple[list[SamplerAssignment], list[TrainerAssignment], list[str]]:
    """The workers of one machine, and why."""
    node, choices, cpu, software = site.node.node, site.choices, site.cpu, site.node.software
    sampling = [device for device in division.sampling if device.site.node is site.node]
    training = [device for device in division.training if device.site.node is site.node]
    sampling_cards = sorted((device.card for device in sampling if device.card), key=_by_index)
    training_cards = sorted((device.card for device in training if device.card), key=_by_index)
    processor_samples = len(sampling) > len(sampling_cards)
    processor_trains = len(training) > len(training_cards)
    both = division.both if division.both in training else None
    shared = both.shared if both else None
    samplers: list[SamplerAssignment] = []
    trainers: list[TrainerAssignment] = []
    why: list[str] = []
    if both and both.card:
        sampling_cards.sort(key=lambda card: card is not both.card)
    for card in sampling_cards:
        kind, way = card.samplers[0][0], shared if both and card is both.card else None
        room = way.room if way else card.room
        where = Place(gpus=(card.gpu.uuid,), memory=way.sampler if way else room.of_use(card.usable))
        stored = room.stored if SAMPLERS[kind].gguf else ""
        samplers.append(SamplerAssignment(SAMPLER, kind, where, way.sharing if way else "", stored, node))
    why += [samplers_on_cards(samplers, sampling_cards, shared, software)] if samplers else []
    next_to_cards, gain = _next_to_cards(site, sampling_cards, processor_trains, wanted)
    places, rest = halves(allowed(cpu), max(1, len(kinds)))
    halved = processor_trains and bool(next_to_cards or processor_samples)
    sharing: Sharing = ""
    if processor_samples:
        places = places if halved else spread(site.cores, max(1, len(kinds)))
        if halved and choices.sampler == "vllm" and choices.share == "base":
            sharing, places, rest = "base", [Place(allowed(cpu))], Place(allowed(cpu))
            choices = replace(choices, precision="f32") if choices.precision == "auto" else choices  # as vLLM keeps it
        # unless it is named: whether bfloat16 fits next to what the trainer's cards take of main memory is not tried
        unrated = replace(cpu, rates=None) if training_cards else cpu
        own = [processor_sampler(SAMPLER, places[0], wanted, choices, times, unrated)]
        if kinds:
            own = [SamplerAssignment(SAMPLER, kind, where) for kind, where in zip(kinds, places, strict=True)]
        samplers += [replace(sampler, node=node, sharing=sharing) for sampler in own]
        why += [sampler_on_processor(sampler, cpu) for sampler in own]
        why += measured_copies(times.copies if own[0].weights else ())
    if training_cards:
        uuids = tuple(card.gpu.uuid for card in training_cards)
        where = Place(gpus=uuids, memory=shared.trainer if shared else min(card.usable for card in training_cards))
        precision = training_cards[0].trainers[0][0]
        trainers.append(TrainerAssignment(TRAINER, where, precision, shared.sharing if shared else "", node))
        why.append(trainer_on_cards(trainers[0], [card.gpu for card in training_cards]))
        why += why_shared(training_cards[0].gpu, shared, choices) if shared else []
    elif training:
        where = rest if halved else Place(site.cores)
        trainers.append(TrainerAssignment(TRAINER, where, processor_precision(cpu, wanted, choices), sharing, node))
        why += trainer_on_processor(trainers[0], cpu, wanted, choices)
    used = {card.gpu.uuid for card in (*sampling_cards, *training_cards)}
    stages = processor_samples, processor_trains
    why_not = list(cards_left_out(site.cards, used, stages, site.named, software))
    if not site.cards:
        gpus = CARDS_LEFT if kinds else too_small(wanted)
        why_not += [gpus] if site.node.machine.gpus else [NO_CARD] if all(stages) else []
    if sampling_cards and site.named.processor_too is not False:
        why += why_next_to_cards(next_to_cards, gain, LEAST_PART)
    return [*samplers, *next_to_cards], trainers, [*why, *why_not] if used else [*why_not, *why]


def _by_index(card: Card) -> tuple[int, str]:
    return card.gpu.index, card.gpu.uuid


def _next_to_cards(
    site: Site, cards: Sequence[Card], trains: bool, wanted: Wanted
) -> tuple[list[SamplerAssignment], float | None]:
    """The sampler on the processor next to cards, if it is named or adds enough, and the share of speed that it adds.

    ``trains``: the processor trains, too. The share is None if a rate is not measured.
    """
    cpu, asked, gain = site.cpu, site.named.processor_too, None
    unrated = replace(cpu, rates=None)  # copies are not measured next to cards
    kind = copies(wanted, replace(site.choices, sampler=site.choices.next_to_cards or "auto"), unrated)[0].sampler
    (place,), _ = halves(allowed(cpu))
    if cards and cpu.rates is not None and all(card.gpu.rates for card in cards):
        added = sampling_speed(rates_of_cores(cpu, len(place.cores)))
        gain = added / sum(sampling_speed(card.rates) for card in cards)
    fits = bool(place.cores) and least_memory(wanted, kind, True, trains) <= cpu.memory
    used = cards and (asked or (asked is None and gain is not None and gain >= LEAST_PART and fits))
    return [SamplerAssignment(SAMPLER, kind, place, node=site.node.node)] if used else [], gain


def _overall(division: Division, sites: Sequence[Site], times: Times) -> Iterator[str]:
    """Why devices are divided so between the stages."""
    sampling = [device for device in division.sampling if device.card]
    training = [device for device in division.training if device.card]
    if len(sites) > 1:
        samples, trains = (
            [site.node.name for site in sites if any(device.site is site for device in stage)]
            for stage in (division.sampling, division.training)
        )
        yield stages_over_nodes(samples, trains, times)
        for site in sites:
            if site.node.name not in (*samples, *trains):
                yield f"{site.node.name} neither samples nor trains: it cannot, or it would add too little."
    elif len(devices := {device for device in (*sampling, *training)}) > 1 and sampling and training:
        divided = f"{len(sampling)} of {len(devices)} cards sample and {len(training)} train"
        if division.both and division.both.card:
            divided = f"{division.both.card.gpu.label} does both, and {len(devices) - 1} more sample"
        yield f"{divided}: {work_ratio(times)}."
        if len({device.card.rates for device in devices if device.card}) > 1:
            yield BY_KIND


def _hosts(
    nodes: Sequence[UsableNode], workers: Sequence[SamplerAssignment | TrainerAssignment]
) -> tuple[EnvironmentHost, ...]:
    """Where environments and scores run: on the engine's machine, if nothing goes over a link, then on the nodes
    with the most cores that no worker is pinned to. They need processors and few bytes (RollArt, arXiv 2512.22560)."""

    def free(node: UsableNode) -> int:
        taken = {core for own in workers if own.node == node.node for core in own.place.cores}
        return node.machine.cpu.count - len(taken)

    row = sorted(nodes, key=lambda node: (bool(node.node), -free(node), node.link.call, node.name, node.node))
    return tuple(EnvironmentHost(node.node, node.name, node.machine.cpu.count, node.link.call) for node in row)
