"""The decision: which samplers and which trainer are started where, and why.

It follows from the machine, as far as the engine may use it, what is installed, a base with its settings, the user's
wishes and the stages' times. Pure. It never plans with more than a card's free memory less a reserve, and has a plan
for every machine: what does not fit a card is computed on the processor.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from ...base import BFLOAT16, Wanted
from ...devices import Machine, Placement, Precision, SamplerKind, Sharing, Software, UsableResources
from ...errors import ConfigError
from ...home import Settings
from . import reasons
from .assignments import (
    beside_assignment,
    in_one_process,
    processor_sampler_assignment,
    processor_trainer_assignment,
    sampler_assignment,
    shared_assignments,
    trainer_assignment,
)
from .capacity import KINDS, Card, look
from .processor import alone, halves, is_small, together
from .sharing import Division, Way, beside, divide, ways, worth_of
from .wishes import Choices, Times, Wishes, checked

EXACT: tuple[Precision, ...] = ("bf16", "f32")
"""Precisions that keep the trainer's base as the sampler has it; four bits are for where neither fits."""


def place(
    machine: Machine, software: Software, wanted: Wanted, choices: Choices | None = None, times: Times | None = None
) -> Placement:
    """The placement. Raises ``ConfigError`` where the wishes contradict one another or cannot be met here."""
    choices, times = choices or Choices(), times or Times()
    wishes = checked(machine, software, choices)
    unnamed = wishes.rollout is None and wishes.training is None and choices.sampler != "vllm"
    if machine.gpus and unnamed and is_small(wanted.parameters):
        return _on_processor(machine, wanted, choices, times, (reasons.too_small(wanted),))
    cards = [look(gpu, machine, software, wanted, choices) for gpu in machine.gpus]
    _check_named(cards, wishes)
    shares = {card.gpu.uuid: ways(card, machine, wanted, choices) for card in cards}
    for kinds, precisions in _preferences():
        able = [_narrowed(card, kinds, precisions) for card in cards]
        ways_of = {
            uuid: [way for way in found if way.kind in kinds and way.precision in precisions]
            for uuid, found in shares.items()
        }
        worths = [worth_of(card, wishes.may_sample(card.gpu.uuid), wishes.may_train(card.gpu.uuid)) for card in able]
        fits = [uuid for uuid, found in ways_of.items() if found]
        division = divide(worths, times, fits, wishes.together)
        if division is not None:
            return _on_cards(division, cards, ways_of, machine, software, wanted, choices, times, wishes)
    return _on_either(cards, machine, software, wanted, choices, times, wishes)


def _preferences() -> Iterator[tuple[tuple[SamplerKind, ...], tuple[Precision, ...]]]:
    """Kinds of samplers and precisions that cards may run, the preferred combination first."""
    for kind in KINDS:
        yield (kind,), EXACT[:1]
        yield (kind,), EXACT[1:]
        yield (kind,), ("nf4",)


def _narrowed(card: Card, kinds: Sequence[SamplerKind], precisions: Sequence[Precision]) -> Card:
    return replace(
        card,
        samplers=tuple((kind, room) for kind, room in card.samplers if kind in kinds),
        trainers=tuple((precision, room) for precision, room in card.trainers if precision in precisions),
    )


def _check_named(cards: Sequence[Card], wishes: Wishes) -> None:
    for card in cards:
        if wishes.rollout and card.gpu.uuid in wishes.rollout and card.no_sampler:
            raise ConfigError(
                f"`devices` under [rollout] names {card.gpu.label}, which cannot sample: {card.no_sampler}."
            )
        if wishes.training and card.gpu.uuid in wishes.training and card.no_trainer:
            raise ConfigError(
                f"`devices` under [training] names {card.gpu.label}, which cannot train: {card.no_trainer}."
            )


def _on_cards(
    division: Division,
    cards: Sequence[Card],
    ways_of: dict[str, list[Way]],
    machine: Machine,
    software: Software,
    wanted: Wanted,
    choices: Choices,
    times: Times,
    wishes: Wishes,
) -> Placement:
    """Both stages on cards."""
    shared = division.shared
    found = ways_of[shared.gpu.uuid] if shared else []
    way = found[0] if found else None
    samplers = [sampler_assignment(card, number) for number, card in enumerate(division.rollout, 1)]
    if shared and way:
        samplers[0], trainer = shared_assignments(shared, way)
    else:
        trainer = trainer_assignment(division.training)
    more = beside(machine, division.rollout, wanted, choices, times, wishes, trains=False)
    said = [
        *reasons.samplers(samplers, division.rollout, way, software),
        reasons.trainer(trainer, division.training, way),
        *reasons.divided(division, sum(bool(card.samplers or card.trainers) for card in cards), times),
        *reasons.shared(found, shared, choices),
        *reasons.left_out(cards, {card.gpu.uuid for card in (*division.rollout, *division.training)}, samplers[0].kind),
        *reasons.beside(more),
    ]
    if more.kind:
        samplers.append(beside_assignment(more, len(samplers) + 1))
    return Placement(tuple(samplers), trainer, tuple(said))


def _on_either(
    cards: Sequence[Card],
    machine: Machine,
    software: Software,
    wanted: Wanted,
    choices: Choices,
    times: Times,
    wishes: Wishes,
) -> Placement:
    """At most one stage on cards: training, which takes the more arithmetic, where a card could do either."""
    trains = [card for card in cards if card.trainers and wishes.may_train(card.gpu.uuid)]
    samples = [card for card in cards if card.samplers and wishes.may_sample(card.gpu.uuid)]
    _check_possible(trains, samples, machine, choices, wishes)
    if trains and not wishes.rollout and (choices.sampler != "vllm" or not samples):
        precision = next(p for p in (*EXACT, "nf4") if any(p == own for card in trains for own, _ in card.trainers))
        chosen = [_narrowed(card, KINDS, (precision,)) for card in trains]
        chosen = [card for card in chosen if card.trainers]
        trainer = trainer_assignment(chosen[:1] if any(card.gpu.part is not None for card in chosen) else chosen)
        # unless it is named: whether bfloat16 fits beside what the trainer's cards take of main memory is not tried
        unrated = replace(machine.cpu, rates=None)
        sampler = processor_sampler_assignment(alone(machine.cpu), wanted, choices, times, unrated)
        used = {uuid for uuid in trainer.place.gpus}
        said = [
            reasons.on_processor(sampler, "Sampling", machine.cpu),
            reasons.trainer(trainer, [card for card in chosen if card.gpu.uuid in used], None),
            *reasons.no_sampler(cards, wishes, software),
        ]
        return Placement((sampler,), trainer, tuple(said))
    if samples:
        kind = next(kind for kind in KINDS if any(kind == own for card in samples for own, _ in card.samplers))
        chosen = [card for card in (_narrowed(card, (kind,), EXACT) for card in samples) if card.samplers]
        samplers = [sampler_assignment(card, number) for number, card in enumerate(chosen, 1)]
        more = beside(machine, chosen, wanted, choices, times, wishes, trains=True)
        trainer = processor_trainer_assignment(
            more.rest if more.kind else alone(machine.cpu), machine.cpu, wanted, choices
        )
        said = [
            *reasons.samplers(samplers, chosen, None, software),
            reasons.on_processor(trainer, "Training"),
            *reasons.bfloat16(trainer, machine.cpu, wanted, choices),
            *reasons.no_trainer(cards, wishes, software),
            *reasons.beside(more),
        ]
        if more.kind:
            samplers.append(beside_assignment(more, len(samplers) + 1))
        return Placement(tuple(samplers), trainer, tuple(said))
    said = [*reasons.left_out(cards, set(), ""), *reasons.nothing_reached(machine, software)]
    return _on_processor(machine, wanted, choices, times, said)


def _check_possible(
    trains: Sequence[Card], samples: Sequence[Card], machine: Machine, choices: Choices, wishes: Wishes
) -> None:
    """Raise ``ConfigError`` where what was asked for fits nowhere."""
    if choices.sampler == "vllm" and machine.gpus and not samples:
        raise ConfigError(
            '`sampler = "vllm"` under [rollout] cannot be: no card that may be used serves this base with it.',
            'Write `sampler = "auto"`; `marlaas doctor` says what is wrong with each card.',
        )
    together = (wishes.rollout and wishes.training) or (choices.sampler == "vllm" and samples and wishes.training)
    if together or (choices.share != "auto" and samples and trains):
        what = f'`share = "{choices.share}"` under [resources]' if choices.share != "auto" else "`devices`"
        raise ConfigError(
            f"{what} cannot be: sampler and trainer of this base do not fit there together.",
            'Remove the key, or choose a smaller base, a shorter `context` or `precision = "nf4"`.',
        )


def _on_processor(
    machine: Machine, wanted: Wanted, choices: Choices, times: Times, before: Sequence[str] = ()
) -> Placement:
    one_process = choices.sampler == "vllm" and choices.share in ("base", "sleep")
    first, second = together(machine.cpu) if one_process else halves(machine.cpu)
    if one_process and choices.precision == "auto":
        choices = replace(choices, precision="f32")  # as vLLM keeps the base on a processor
    sampler = processor_sampler_assignment(first, wanted, choices, times, machine.cpu)
    trainer = processor_trainer_assignment(second, machine.cpu, wanted, choices)
    if one_process:
        sampler, trainer = in_one_process(sampler, trainer, "base" if choices.share == "base" else "sleep")
    if not machine.gpus:
        before = (*before, reasons.no_cards())
    said = (
        reasons.on_processor(sampler, "Sampling", machine.cpu),
        *reasons.measured(times.copies if sampler.weights else ()),
        reasons.on_processor(trainer, "Training"),
        *reasons.bfloat16(trainer, machine.cpu, wanted, choices),
    )
    return Placement((sampler,), trainer, (*before, *said))


def decide(
    settings: Settings,
    wanted: Wanted,
    usable: UsableResources,
    software: Software,
    times: Times | None = None,
    without: Sequence[Sharing] = (),
) -> Placement:
    """The placement, with reasons for what is used and for what is not.

    ``without`` names ways of sharing a card that failed when workers were started so. Raises ``ConfigError`` where
    settings contradict one another or this machine.
    """
    placement = place(usable.machine, software, wanted, choices_of(settings, without), times)
    out = [left.reason for left in usable.left_out]
    return replace(placement, reasons=(*placement.reasons, *out, *usable.notes))


def choices_of(settings: Settings, without: Sequence[Sharing] = ()) -> Choices:
    """What ``marlaas.toml`` says about the placement; of ``samplers`` it names two or none, the cards' one first."""
    rollout, training = settings.rollout, settings.training
    on_cards, beside_them = rollout.samplers or (rollout.sampler, "")
    named = rollout.weights not in ("auto", BFLOAT16)
    llama = "gguf" if rollout.gguf else "weights" if named else ""
    return Choices(
        sampler=on_cards,
        rollout=rollout.devices,
        training=training.devices,
        precision=training.precision,
        share=settings.resources.share,
        llama="" if beside_them == "llama.cpp" and on_cards == "vllm" else llama,
        weights=rollout.weights,
        beside=beside_them,
        without=without,
    )
