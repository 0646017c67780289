"""Which sampler and trainer start on which device, and why. Pure.

The first row that fits. Named devices hold in every row.

| there is | sampling | training |
|---|---|---|
| a small base, no named card | processors | processors |
| several cards for both stages | more bandwidth | more arithmetic |
| one card for both, or one far faster | all | it |
| cards for training only | processors | cards |
| cards for sampling only | cards | strongest processor |
| several processors | fewer cores, as needed | more cores |
| one processor | half of the cores | other half |

A plan takes a card's free memory less a reserve. What fits no card is on the processor. Draining, refused and slowly
linked machines are left out, with the reason.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from ...devices.machine import (
    Cpu,
    Gpu,
    Place,
    Placement,
    Precision,
    SamplerAssignment,
    SamplerKind,
    TrainerAssignment,
    UsableNode,
)
from ...errors import ConfigError
from ...models.config import BFLOAT16, SAMPLERS
from ...models.memory import FLOAT, RANK, SMALL, Wanted, adapter_bytes
from .capacity import (
    KINDS,
    Card,
    SamplerRoom,
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
    allowed,
    choices_by_node,
    copies_on,
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

WORK = 2.0
"""Sampling's work over training's (published: two to five); too few cards at rollout cost more than too many."""
RATIO = f"sampling takes about {WORK:.1f} times the work of training"
PRECISIONS: tuple[Precision, ...] = ("bf16", "f32", "nf4")
"""Preferred first; four bits if neither other fits."""
GAIN = 2.0
"""Least speed-up for one device to serve both stages."""
DISTURBED = 0.5
"""Sampling speed left next to a trainer."""
LEAST_PART = 0.1
"""Least share of the fastest device's speed, unnamed: each sampler is compared with the trainer at every version."""
SLOW = 30.0
"""Most seconds for a state's way to an unnamed node."""
ROWS: tuple[tuple[SamplerKind | None, Precision | None], ...] = (
    *((kind, precision) for kind in KINDS for precision in PRECISIONS),
    *((None, precision) for precision in PRECISIONS),
    *((kind, None) for kind in KINDS),
    (None, None),
)
"""For sampling and training, preferred first; None: processors."""
BASES = {"f32": "float32", "bf16": "bfloat16", "nf4": "four bits"}
NO_ROOM = "The best copy of the base for sampling here needs more memory than training leaves; a smaller one is used."


@dataclass(frozen=True, eq=False)
class Site:
    """A machine and its user's choices."""

    node: UsableNode
    choices: Choices
    named: NamedDevices
    samples: bool
    trains: bool
    cards: tuple[Card, ...]
    """Empty if the base is small and no card is named."""

    @property
    def cpu(self) -> Cpu:
        return self.node.machine.cpu

    @property
    def cores(self) -> tuple[int, ...]:
        """All of a node's, or all but one, which feeds cards and nodes."""
        cores = allowed(self.cpu)
        return cores if self.node.node else cores[1:]


@dataclass(frozen=True, eq=False)
class Device:
    """A card or a processor; speeds as multiples of a reference card's, 0: may not."""

    site: Site
    card: Card | None
    sampling: float
    training: float
    both: bool
    shared: SharedCard | None = None

    @property
    def leaning(self) -> tuple[object, ...]:
        """From better at sampling to better at training.

        Of equals the stronger train, then the engine's machine's: states need not travel.
        """
        ratio = self.training / self.sampling if self.sampling else math.inf
        card = (self.card.gpu.index, self.card.gpu.uuid) if self.card else (0, "")
        node = self.site.node
        return float(f"{ratio:.6g}"), self.training, not node.node, node.name, node.node, card


class Division(NamedTuple):
    """Devices by stage, and the slower stage's speed."""

    sampling: Sequence[Device]
    training: Sequence[Device]
    speed: float
    both: Device | None = None

    @property
    def order(self) -> tuple[float, int]:
        return float(f"{self.speed:.9e}"), len(self.sampling)


def divide(devices: Sequence[Device], most: int, together: bool = False) -> Division | None:
    """Trains on the most tokens; None if a stage has no device.

    At most ``most`` machines train; ``together``: one device serves both.
    """
    row = sorted(devices, key=lambda device: device.leaning)
    apart = Division((), (), 0.0)
    for cut in range(0 if together else len(row)):
        sampling = [device for device in row[:cut] if device.sampling]
        training = _trainable([device for device in row[cut:] if device.training], most)
        speed = min(math.fsum(each.sampling for each in sampling) / WORK, math.fsum(each.training for each in training))
        apart = max(apart, Division(sampling, training, speed), key=lambda division: division.order)
    able = [device for device in devices if device.both and device.sampling and device.training]
    both = max((_with_both(device, devices) for device in able), key=lambda division: division.order, default=None)
    if both is None or (not together and both.speed <= GAIN * apart.speed):
        return apart if apart.speed else None
    return both


def _with_both(device: Device, devices: Sequence[Device]) -> Division:
    others = [other for other in devices if other is not device and other.sampling]
    own = device.sampling * (DISTURBED if others else 1.0)
    speed = (math.fsum(other.sampling for other in others) + own) / (WORK + own / device.training)
    return Division((device, *others), (device,), min(speed, device.training), device)


def _trainable(devices: Sequence[Device], most: int) -> list[Device]:
    """A process computes on one part of a divided card (MIG)."""
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
    copies: Sequence[CopySpeed] = (),
    trainers: int = 0,
    kinds: Sequence[SamplerKind] = (),
) -> Placement:
    """The placement, with at most one trainer a machine.

    ``copies``: measured here; ``trainers``: under [training]; ``kinds``: ``samplers`` for processors. Raises
    ``ConfigError`` without a usable machine, or for contradictions.
    """
    choices = choices or Choices()
    nodes = sorted(nodes, key=lambda node: (bool(node.node), node.name, node.node))
    sites, left_out = _sites(nodes, wanted, choices, kinds)
    division = _best_division(sites, wanted, choices, min(trainers or wanted.tasks, wanted.tasks))
    several = len(sites) > 1
    training = [device.site for device in division.training if device.card is None]
    if len({processor_precision(site.cpu, wanted, site.choices) for site in training}) > 1:  # all keep the base alike
        sites = [replace(site, choices=replace(site.choices, precision="f32")) for site in sites]
    samplers: list[SamplerAssignment] = []
    trained: list[TrainerAssignment] = []
    sentences: list[str] = []
    for site in sites:
        site_samplers, site_trainers, why = _assigned(site, division, wanted, copies, kinds)
        samplers, trained = samplers + site_samplers, trained + site_trainers
        name = f"{site.node.name}: " if several else ""
        sentences += [f"{name}{sentence}" for sentence in (*why, *site.node.reasons)]
    overall = list(_overall(division, sites))
    sentences = [*overall, *sentences, *left_out] if several else [*sentences, *overall, *left_out]
    first, *more = (replace(own, name=numbered_name(TRAINER, n)) for n, own in enumerate(trained, 1))
    named = tuple(replace(own, name=numbered_name(SAMPLER, n)) for n, own in enumerate(samplers, 1))
    return Placement(named, first, tuple(sentences), tuple(more))


def _sites(
    nodes: Sequence[UsableNode], wanted: Wanted, choices: Choices, kinds: Sequence[SamplerKind]
) -> tuple[list[Site], list[str]]:
    usable = [node for node in nodes if not node.draining and not node.refused]
    hint = "`marlaas cluster status` says why; `marlaas cluster undrain NODE` takes one back."
    refuse((not usable, "No node can be used: all drain, or are refused.", hint))
    sentences = [f"{node.name} drains, so it gets nothing new." for node in nodes if node.draining]
    sentences += [f"{node.name} is not used: {node.refused}" for node in nodes if node.refused and not node.draining]
    by_node = choices_by_node(usable, choices)
    sites: list[Site] = []
    slow: dict[Site, float] = {}
    error = None
    for node in usable:
        site_choices, samples, trains = by_node[node.node]
        try:
            named = named_devices(node.machine, node.software, site_choices)
        except ConfigError as contradiction:
            error = contradiction
            sentences.append(f"{node.name} is not used: {error.message}")
            continue
        small = is_small(wanted.parameters) and named.rollout is named.training is None
        gpus = () if kinds or (small and site_choices.sampler != "vllm") else node.machine.gpus
        cards = tuple(look(gpu, node.software, wanted, site_choices) for gpu in gpus)
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
        site = Site(node, site_choices, named, samples, trains, cards)
        seconds = node.link.seconds(1, adapter_bytes(wanted.config, RANK))
        if seconds > SLOW and not (choices.rollout and samples) and not (choices.training and trains):
            slow[site] = seconds
        else:
            sites.append(site)
    if not sites and not slow and error:
        raise error
    if sites:
        sentences += [
            f"{site.node.name} is not used: the state of a policy takes {seconds:.0f} s to get there."
            for site, seconds in slow.items()
        ]
    return sites or list(slow), sentences


def _best_division(sites: Sequence[Site], wanted: Wanted, choices: Choices, most: int) -> Division:
    """Raises ``ConfigError`` if no row is possible."""
    together = any(set(site.named.rollout or ()) & set(site.named.training or ()) for site in sites)
    for fitting in (True, False):  # what fits nowhere is placed all the same: the memory plan explains what is missing
        for kind, precision in ROWS:
            devices = _devices(sites, wanted, kind, precision, fitting)
            division = divide(devices, most, together)
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
    """``fitting``: processors with enough main memory."""
    devices = []
    for site in sites:
        named, choices = site.named, site.choices
        for every in site.cards:
            card, uuid = every.only(kind, precision), every.gpu.uuid
            samples = site.samples and bool(card.samplers) and (named.rollout is None or uuid in named.rollout)
            trains = site.trains and bool(card.trainers) and (named.training is None or uuid in named.training)
            shared = shared_card(card) if samples and trains else None
            speeds = sampling_speed(card.rates) * samples, training_speed(card.rates) * trains
            devices.append(Device(site, card, *speeds, shared is not None, shared))
        sampler = copies_on(site.cpu, wanted, choices)[0].sampler
        may = not site.cards or choices.share == "auto"
        cards_only = named.rollout or (choices.sampler == "vllm" and site.node.machine.gpus)
        samples = kind is None and may and site.samples and not cards_only
        trains = precision is None and may and site.trains and not named.training
        samples, trains, both = (
            wish and (len(sites) == 1 or not fitting or least_memory(wanted, sampler, *stages) <= site.node.free)
            for wish, *stages in ((samples, True, False), (trains, False, True), (samples and trains, True, True))
        )
        rates = rates_of_cores(site.cpu, len(site.cores) or site.cpu.count)
        devices.append(Device(site, None, sampling_speed(rates) * samples, training_speed(rates) * trains, both))
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


def _assigned(
    site: Site, division: Division, wanted: Wanted, copies: Sequence[CopySpeed], kinds: Sequence[SamplerKind]
) -> tuple[list[SamplerAssignment], list[TrainerAssignment], list[str]]:
    node, choices, cpu = site.node.node, site.choices, site.cpu
    sampling = [device for device in division.sampling if device.site.node is site.node]
    training = [device for device in division.training if device.site.node is site.node]
    both = division.both if division.both in training else None
    shared, shared_on = (both.shared, both.card) if both else (None, None)
    sampling_cards, training_cards = (
        sorted(
            (device.card for device in stage if device.card),
            key=lambda card: (card is not shared_on, card.gpu.index, card.gpu.uuid),
        )
        for stage in (sampling, training)
    )
    stages = len(sampling) > len(sampling_cards), len(training) > len(training_cards)
    samples_here, trains_here = stages
    samplers: list[SamplerAssignment] = []
    rooms = [shared.room if shared and card is shared_on else card.room for card in sampling_cards]
    for card, room in zip(sampling_cards, rooms, strict=True):
        memory = shared.sampler if shared and card is shared_on else room.of_use(card.usable)
        where, kind = Place(gpus=(card.gpu.uuid,), memory=memory), card.samplers[0][0]
        stored = room.stored if SAMPLERS[kind].gguf else ""
        samplers.append(SamplerAssignment(SAMPLER, kind, where, stored, node))
    why = list(_samplers_on_cards(site, samplers, sampling_cards, rooms))
    places, rest = halves(allowed(cpu), max(1, len(kinds)))
    next_to_cards = []
    if sampling_cards and site.named.processor_too:
        asked = replace(choices, sampler=choices.next_to_cards or "auto")
        kind = copies_on(replace(cpu, rates=None), wanted, asked)[0].sampler  # copies are not measured next to cards
        next_to_cards.append(SamplerAssignment(SAMPLER, kind, places[0], node=node))
        reason = "`devices` under [rollout] names it, and its gain is not measured"
        if cpu.rates and all(card.gpu.rates for card in sampling_cards):
            added = sampling_speed(rates_of_cores(cpu, len(places[0].cores)))
            gain = added / sum(sampling_speed(card.rates) for card in sampling_cards)
            reason = f"by the measured rates it adds {gain:.0%} to the cards' speed"
        on = f"{_kind(kind)} on {cores_in_words(places[0])}"
        why.append(f"The processor samples beside them, with {on}: {reason}.")
    halved = trains_here and bool(next_to_cards or samples_here)
    if samples_here:
        places = places if halved else spread(site.cores, max(1, len(kinds)))
        # unless named: bfloat16 is not tried next to main memory of the trainer's cards
        unrated = replace(cpu, rates=None) if training_cards else cpu
        on_cores = [processor_sampler(SAMPLER, places[0], wanted, choices, copies, unrated)]
        if kinds:
            on_cores = [SamplerAssignment(SAMPLER, kind, where) for kind, where in zip(kinds, places, strict=True)]
        samplers += [replace(sampler, node=node) for sampler in on_cores]
        why += [_sampler_on_processor(sampler, cpu) for sampler in on_cores]
        if len(copies) > 1 and on_cores[0].weights:
            figures = "; ".join(f"{speed.copy} {speed.seconds:.2g} s, gap {speed.gap:.2g}" for speed in copies)
            why.append(f"Sampling for a step of the default task was measured here: {figures}.")
    trainers: list[TrainerAssignment] = []
    if training_cards:
        uuids = tuple(card.gpu.uuid for card in training_cards)
        where = Place(gpus=uuids, memory=shared.trainer if shared else min(card.usable for card in training_cards))
        trainers.append(TrainerAssignment(TRAINER, where, training_cards[0].trainers[0][0], node))
        why += _trainer_on_cards(trainers[0], training_cards, shared, choices)
    elif training:
        where = rest if halved else Place(site.cores)
        trainers.append(TrainerAssignment(TRAINER, where, processor_precision(cpu, wanted, choices), node))
        why.append(f"Training takes {cores_in_words(where)}, over the base in {BASES[trainers[0].precision]}.")
        why += [_why_precision(trainers[0], cpu)] * decides_precision(wanted.parameters, choices.precision)
    used = {card.gpu.uuid for card in (*sampling_cards, *training_cards)}
    why_not = list(_cards_left_out(site, used, stages, wanted, bool(kinds)))
    return [*samplers, *next_to_cards], trainers, [*why, *why_not] if used else [*why_not, *why]


# Several trainers train several policies at once (FlexMARL, arXiv 2602.09578, binds devices to agents). Equal threads:
# equal bits.

PAIR = 2
"""A trainer's cores, unasked. Two cores, shipped base, short prompts: a second thread makes a step 1.2 times as fast, a
second trainer makes 1.8 times as many."""
MOST_TRAINERS = 4
"""On a processor, unasked; each takes memory for a base and a program."""


def with_trainers(placement: Placement, asked: int, small: bool, policies: int) -> Placement:
    """With ``asked`` trainers in all; 0: as many as pay.

    ``small``: further threads gain little. Cards have a trainer each while there are ``policies``: adapters need no
    exchange, and all cards hold the base anyway. A trainer on a sampler's device stays the only one.
    """
    first, *_ = trainers = placement.trainers
    places = [trainer.place for trainer in trainers]
    pairs = [min(MOST_TRAINERS, max(1, len(place.cores) // PAIR)) if small else 1 for place in places]
    useful = sum(len(place.gpus) or pair for place, pair in zip(places, pairs, strict=True))
    counts = [1] * len(trainers)
    while sum(counts) < (asked or min(policies, useful)) and not placement.shared:
        free = [n for n, place in enumerate(places) if not place.gpus or counts[n] < len(place.gpus)]
        if not free:
            break
        counts[max(free, key=lambda n: len(places[n].gpus or places[n].cores) / counts[n])] += 1
    parts = [part for own, count in zip(trainers, counts, strict=True) for part in _parts(own, count)]
    threads = min(len(part.place.cores) or 1 for part in parts)
    parts = [
        replace(part, name=numbered_name(TRAINER, number), place=replace(part.place, cores=part.place.cores[:threads]))
        for number, part in enumerate(parts, 1)
    ]
    sentences = list(placement.reasons)
    if asked > len(parts):
        why = "the trainer shares its card with a sampler" if placement.shared else "training has no more cards"
        sentences.append(f"`trainers = {asked}` under [training] cannot be: {why}.")
    if len(parts) > len(trainers):
        has, why = f"on {cores_in_words(parts[0].place)} each", "for a small base gains little by threads"
        if first.place.gpus:
            has, why = "with cards of their own", "for adapters need no exchange between them"
        if asked:
            why = f"as `trainers = {asked}` under [training] asks for"
        sentences.append(f"{len(parts)} trainers train different policies at the same time, {has}, {why}.")
    return replace(placement, trainer=parts[0], more=tuple(parts[1:]), reasons=tuple(sentences))


def _parts(trainer: TrainerAssignment, count: int) -> Iterator[TrainerAssignment]:
    gpus, cores = trainer.place.gpus, trainer.place.cores
    each = len(cores) // count
    for number in range(count):
        own = cores if count == 1 else cores[number * each : (number + 1) * each]
        if cores and not each:  # fewer cores than trainers: they share them
            own = (cores[number % len(cores)],)
        cards = gpus[len(gpus) * number // count : len(gpus) * (number + 1) // count]
        yield replace(trainer, place=Place(own, cards, trainer.place.memory))


def cards_in_words(gpus: Sequence[Gpu]) -> str:
    """By label: ``gpu 0, gpu 1 and gpu 3``."""
    return listed([gpu.label for gpu in gpus])


def cores_in_words(place: Place) -> str:
    """A worker's cores on the processor."""
    count = len(place.cores)
    return f"{count} {'core' if count == 1 else 'cores'}" if count else "the processor"


def _on(cards: Sequence[Card]) -> str:
    gpus = [card.gpu for card in cards]
    return cards_in_words(gpus) if len(gpus) > 1 or not gpus[0].name else f"{gpus[0].label} ({gpus[0].name})"


def _kind(kind: str) -> str:
    return {"vllm": "vLLM", "torch": "the torch sampler"}.get(kind, kind)


def _sampler_on_processor(sampler: SamplerAssignment, cpu: Cpu) -> str:
    fast = sampler.weights == BFLOAT16
    stored = f" over the base in {'bfloat16' if fast else sampler.weights}" if sampler.weights else ""
    if fast and cpu.rates:
        stored += f", which this processor multiplies {cpu.rates.gain:.1f} times as fast as float32"
    return f"Sampling takes {cores_in_words(sampler.place)}, with {_kind(sampler.kind)}{stored}."


def _samplers_on_cards(
    site: Site, samplers: Sequence[SamplerAssignment], on: Sequence[Card], rooms: Sequence[SamplerRoom]
) -> Iterator[str]:
    if not samplers:
        return
    count = min(room.conversations(own.place.memory) for room, own in zip(rooms, samplers, strict=True))
    version = f" {site.node.software.vllm}" if samplers[0].kind == "vllm" else ""
    weights = " or ".join(dict.fromkeys(own.weights for own in samplers if own.weights))
    stored = f", the base in {weights}," if weights else ""
    memory = size(min(own.place.memory for own in samplers)) + ("" if len(on) == 1 else " or more on each")
    room = f"room for {count} conversations at their longest"
    yield f"{_kind(samplers[0].kind)}{version} samples on {_on(on)}{stored} with {memory}: {room}."


def _trainer_on_cards(
    trainer: TrainerAssignment, on: Sequence[Card], shared: SharedCard | None, choices: Choices
) -> Iterator[str]:
    each = "" if len(on) == 1 else " on each"
    base = f"over the base in {BASES[trainer.precision]}"
    yield f"Training is on {_on(on)}, {base}, with {size(trainer.place.memory)}{each}."
    if shared is not None:
        asked = ', as `share = "memory"` under [resources] asks for' if choices.share == "memory" else ""
        room = f"room for {shared.conversations} conversations"
        yield f"Sampler and trainer share {on[0].gpu.label}, each with a part of its memory{asked}: {room}."


def _why_precision(trainer: TrainerAssignment, cpu: Cpu) -> str:
    gain = cpu.rates.gain if cpu.rates else 0.0
    cases = (
        (cpu.rates is None, "Whether bfloat16 is faster here is not measured: `marlaas doctor --measure` does."),
        (
            not gain,
            "The trainer's base is in float32: bfloat16 is multiplied wrongly here, or not by oneDNN, which a limit of"
            " the address space (`ulimit -v`) rules out.",
        ),
        (trainer.precision != "bf16", "This processor has no fast bfloat16; the trainer uses float32."),
        (True, f"The trainer's base is in bfloat16: this processor multiplies it {gain:.1f} times as fast as float32."),
    )
    return next(sentence for holds, sentence in cases if holds)


def _cards_left_out(
    site: Site, used: set[str], stages: tuple[bool, bool], wanted: Wanted, samplers_listed: bool
) -> Iterator[str]:
    """``stages``: what the processor does."""
    named = site.named.rollout is not None, site.named.training is not None
    forced = any(stage and name for stage, name in zip(stages, named, strict=True))
    for card in site.cards:
        why = "; ".join(dict.fromkeys(clause for clause in (card.no_sampler, card.no_trainer) if clause))
        if card.gpu.uuid not in used:
            yield f"{_on([card])} is not used: {why or 'it would add too little, or it needs another sampler'}."
        elif any(stages) and not forced:
            yield f"{card.gpu.label} does no more: {why or 'sampler and trainer do not fit on it together'}."
    missing = site.node.software.vllm_reason, site.node.software.torch_reason
    for stage, reason, name in zip(stages, missing, named, strict=True):
        yield from [reason] if site.cards and stage and reason and not name else []
    few = (
        f"The cards are left to others: this base has {wanted.parameters / 1e6:.1f} million parameters, and up to "
        f"{SMALL / FLOAT / 1e6:.0f} million the processor is about as fast; `devices` under [rollout] and "
        "[training] names cards all the same."
    )
    left = "`samplers` under [rollout] leaves the cards to others." if samplers_listed else few
    none = ["No GPU: sampling and training share the CPU."] * all(stages)
    yield from [] if site.cards else [left] if site.node.machine.gpus else none


def _overall(division: Division, sites: Sequence[Site]) -> Iterator[str]:
    if len(sites) > 1:
        samples, trains = (
            [site.node.name for site in sites if any(device.site.node is site.node for device in stage)]
            for stage in (division.sampling, division.training)
        )
        words = (
            _verb(samples, "samples and trains", "sample and train")
            if samples == trains
            else f"{_verb(samples, 'samples', 'sample')}, and {_verb(trains, 'trains', 'train')}"
        )
        yield f"{words}: {RATIO}."
        for site in sites:
            if site.node.name not in (*samples, *trains):
                yield f"{site.node.name} neither samples nor trains: it cannot, or it would add too little."
        return
    sampling, training = ([device.card for device in stage if device.card] for stage in division[:2])
    cards = {card.gpu.uuid: card for card in (*sampling, *training)}
    if len(cards) > 1 and sampling and training:
        divided = f"{len(sampling)} of {len(cards)} cards sample and {len(training)} train"
        if division.both and division.both.card:
            divided = f"{division.both.card.gpu.label} does both, and {len(cards) - 1} more sample"
        yield f"{divided}: {RATIO}."
        if len({card.rates for card in cards.values()}) > 1:
            yield "Cards with more bandwidth sample, cards with more arithmetic train, as far as that goes."


def _verb(names: Sequence[str], singular: str, plural: str) -> str:
    who = f"{len(names)} nodes" if len(names) > 6 else listed(names)
    return f"{who} {singular if len(names) == 1 else plural}"
