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
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from ...base import RANK, SAMPLERS, Wanted, adapter_bytes
from ...devices import (
    Cpu,
    EnvironmentHost,
    Place,
    Placement,
    Precision,
    SamplerAssignment,
    SamplerKind,
    Sharing,
    TrainerAssignment,
    UsableNode,
)
from ...errors import ConfigError
from . import reasons
from .capacity import (
    KINDS,
    Card,
    SharedCard,
    look,
    rates_of_cores,
    sampling_speed,
    shared_card,
    training_speed,
)
from .choices import Choices, NamedDevices, Times, choices_by_node, named_devices, refuse
from .limits import least_memory
from .processor import (
    SAMPLER,
    TRAINER,
    allowed,
    copies,
    halves,
    is_small,
    numbered_name,
    processor_precision,
    processor_sampler,
    spread,
)

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
    """The placement, with one trainer at most on each machine (``trainers.with_trainers`` divides it).

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
    sentences += [reasons.environments_on(hosts)] if len(hosts) > 1 else []
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
    sentences, by_node = reasons.nodes_left_out(nodes), choices_by_node(usable, choices)
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
    for fitting in (True, False):  # what fits nowhere is placed all the same: the memory plan says what is missing
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
    why += [reasons.samplers_on_cards(samplers, sampling_cards, shared, software)] if samplers else []
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
        why += [reasons.sampler_on_processor(sampler, cpu) for sampler in own]
        why += reasons.measured_copies(times.copies if own[0].weights else ())
    if training_cards:
        uuids = tuple(card.gpu.uuid for card in training_cards)
        where = Place(gpus=uuids, memory=shared.trainer if shared else min(card.usable for card in training_cards))
        precision = training_cards[0].trainers[0][0]
        trainers.append(TrainerAssignment(TRAINER, where, precision, shared.sharing if shared else "", node))
        why.append(reasons.trainer_on_cards(trainers[0], [card.gpu for card in training_cards]))
        why += reasons.shared(training_cards[0].gpu, shared, choices) if shared else []
    elif training:
        where = rest if halved else Place(site.cores)
        trainers.append(TrainerAssignment(TRAINER, where, processor_precision(cpu, wanted, choices), sharing, node))
        why += reasons.trainer_on_processor(trainers[0], cpu, wanted, choices)
    used = {card.gpu.uuid for card in (*sampling_cards, *training_cards)}
    stages = processor_samples, processor_trains
    why_not = list(reasons.cards_left_out(site.cards, used, stages, site.named, software))
    if not site.cards:
        gpus = reasons.CARDS_LEFT if kinds else reasons.too_small(wanted)
        why_not += [gpus] if site.node.machine.gpus else [reasons.NO_CARD] if all(stages) else []
    if sampling_cards and site.named.processor_too is not False:
        why += reasons.next_to_cards(next_to_cards, gain, LEAST_PART)
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
        yield reasons.stages_over_nodes(samples, trains, times)
        for site in sites:
            if site.node.name not in (*samples, *trains):
                yield f"{site.node.name} neither samples nor trains: it cannot, or it would add too little."
    elif len(devices := {device for device in (*sampling, *training)}) > 1 and sampling and training:
        divided = f"{len(sampling)} of {len(devices)} cards sample and {len(training)} train"
        if division.both and division.both.card:
            divided = f"{division.both.card.gpu.label} does both, and {len(devices) - 1} more sample"
        yield f"{divided}: {reasons.work_ratio(times)}."
        if len({device.card.rates for device in devices if device.card}) > 1:
            yield reasons.BY_KIND


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
