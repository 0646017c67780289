"""What ``marlaas.toml`` says about devices, checked against the machine, and what was measured there. Pure.

Names become cards, and contradictions an error. Whether a base fits is checked later.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from ...base import BFLOAT16, SAMPLERS
from ...devices import Gpu, Machine, SamplerKind, Sharing, Software, UsableNode
from ...errors import ConfigError
from ...home import Settings

CPU = "cpu"
TORCH_KINDS = ("cuda", "rocm")
"""Kinds of cards that torch trains on."""


@dataclass(frozen=True)
class Choices:
    """From ``marlaas.toml``; ``auto`` and empty leave the choice to the placement."""

    sampler: str = "auto"
    """``sampler`` under [rollout]."""
    rollout: Sequence[str] = ()
    """``devices`` under [rollout]: ``cpu``, or cards by label, ``gpu 0``, or by the beginning of their id; or both."""
    training: Sequence[str] = ()
    """``devices`` under [training]."""
    precision: str = "auto"
    """``precision`` under [training]."""
    share: str = "auto"
    """``share`` under [resources]: how sampler and trainer share a card, or, with vLLM, a processor."""
    llama: str = ""
    """The key under [rollout] that is set and that only llama.cpp understands, ``weights`` or ``gguf``."""
    weights: str = "auto"
    """``weights`` under [rollout]."""
    next_to_cards: str = ""
    """The sampler on the processor next to cards, if ``samplers`` names one."""
    without: Sequence[Sharing] = ()
    """Ways of sharing a card that failed when the workers were started."""


class Copy(NamedTuple):
    """How a sampler on the processor keeps the base."""

    sampler: SamplerKind
    weights: str
    """The precision, one of ``base.precision.BITS``; empty: as the settings say."""

    def __str__(self) -> str:
        """In words."""
        return f"{self.sampler} {self.weights}".strip()


@dataclass(frozen=True)
class CopySpeed:
    """A copy as it was measured on this processor."""

    copy: Copy
    seconds: float
    """Seconds of sampling for a step of the default task."""
    gap: float
    """Mean difference between the sampler's and the trainer's log-probabilities, nats."""


@dataclass(frozen=True)
class Times:
    """How long one card takes at each stage for a trained token, in any unit.

    Sampling is taken to be twice the work of training: published systems spend two to five
    times as long on it, and a card too many at rollout costs less than one too few, as training can wait for none.
    """

    sampling: float = 2.0
    training: float = 1.0
    copies: Sequence[CopySpeed] = ()
    """The copies of this base that were measured on this processor."""

    def __post_init__(self) -> None:
        """Raise ``ValueError`` where a stage takes no time."""
        if not (self.sampling > 0 and self.training > 0):
            raise ValueError("a stage takes more than no time")


def choices_of(settings: Settings, without: Sequence[Sharing] = ()) -> Choices:
    """What ``marlaas.toml`` says about the placement; the first of ``samplers`` is the cards'."""
    rollout, training = settings.rollout, settings.training
    on_cards, on_processor, *_ = *(rollout.samplers or (rollout.sampler,)), ""
    weights_named = rollout.weights not in ("auto", BFLOAT16)
    llama = "gguf" if rollout.gguf else "weights" if weights_named else ""
    return Choices(
        sampler=on_cards,
        rollout=rollout.devices,
        training=training.devices,
        precision=training.precision,
        share=settings.resources.share,
        llama="" if on_processor == "llama.cpp" and on_cards == "vllm" else llama,
        weights=rollout.weights,
        next_to_cards=on_processor,
        without=without,
    )


@dataclass(frozen=True)
class NamedDevices:
    """The devices that a machine's user names for each stage; None: the best ones."""

    rollout: tuple[str, ...] | None
    """Ids of cards; empty: the processor."""
    training: tuple[str, ...] | None
    processor_too: bool | None = None
    """Whether the processor samples next to the cards in ``rollout``; None: if it adds enough."""

    @property
    def same_card(self) -> bool:
        """Whether a card is named for both stages."""
        return bool(set(self.rollout or ()) & set(self.training or ()))


def named_devices(machine: Machine, software: Software, choices: Choices) -> NamedDevices:
    """The named devices. Raises ``ConfigError`` for names that the machine does not have, and for contradictions."""
    both = any(map(_is_processor, choices.rollout)) and not all(map(_is_processor, choices.rollout))
    rollout = _devices([name for name in choices.rollout if not (both and _is_processor(name))], machine, "[rollout]")
    training = _devices(choices.training, machine, "[training]")
    refuse(
        *_sampler_contradictions(machine, software, choices, rollout),
        *_trainer_contradictions(machine, software, choices, training),
        *(() if choices.share == "auto" else _sharing_contradictions(machine, choices, rollout, training)),
    )
    named = NamedDevices(rollout, training, both if choices.rollout else None)
    further = "`devices` under [rollout] and [training] name the same card and further ones for training."
    refuse(
        (
            named.same_card and len(training or ()) > 1,
            further,
            "A card that samples, too, must be the trainer's only one.",
        )
    )
    return named


def _is_processor(name: str) -> bool:
    return name.strip().lower() == CPU


def _devices(names: Sequence[str], machine: Machine, table: str) -> tuple[str, ...] | None:
    if not names:
        return None
    if any(map(_is_processor, names)):
        if len(names) > 1:
            raise ConfigError(f"`devices` under {table} names the processor and cards.", "Name one or the other.")
        return ()
    return tuple(dict.fromkeys(_card(name, machine.gpus, table) for name in names))


def _card(name: str, gpus: Sequence[Gpu], table: str) -> str:
    word = name.strip().lower()
    matches = [gpu.uuid for gpu in gpus if gpu.label == word]
    matches = matches or [gpu.uuid for gpu in gpus if word and gpu.uuid.lower().startswith(word)]
    if len(matches) != 1:
        known = listed([CPU, *(gpu.label for gpu in gpus)])
        problem = "several cards" if matches else "no device that may be used here"
        raise ConfigError(f"`devices` under {table} has {name!r}, which is {problem}.", f"There are: {known}.")
    return matches[0]


Contradiction = tuple[bool, str, str]
"""Whether it is one, what is wrong, and how to mend it."""


def refuse(*contradictions: Contradiction) -> None:
    """Raise ``ConfigError`` for the first that holds."""
    for holds, message, hint in contradictions:
        if holds:
            raise ConfigError(message, hint)


def may_use_cards(settings: Settings) -> bool:
    """Whether ``samplers`` under [rollout] leaves cards to marlaas.

    Raises ``ConfigError`` if the list contradicts the other settings.
    """
    rollout, training, share = settings.rollout, settings.training, settings.resources.share
    kinds, cards = rollout.samplers, not all(map(_is_processor, rollout.devices))
    on_processor = bool(kinds) and not cards
    too_much = {
        '`sampler = "vllm"`': rollout.sampler == "vllm",
        "`devices` with cards under [training]": not all(map(_is_processor, training.devices)),
        f'`precision = "{training.precision}"` under [training]': training.precision in ("bf16", "nf4"),
        f'`share = "{share}"` under [resources]': share != "auto",
    }
    pair = (
        len(kinds) == 2 and SAMPLERS[kinds[0]].cards and kinds[1] != "vllm" and any(map(_is_processor, rollout.devices))
    )
    refuse(
        (
            on_processor and "vllm" in kinds,
            '`samplers` under [rollout] lists "vllm", which computes on cards, and `devices` there names none.',
            'Write `devices = ["gpu 0", "cpu"]` for vLLM on a card with another sampler on the processor.',
        ),
        (
            bool(kinds) and cards and not pair,
            "`samplers` and `devices` under [rollout] do not go together: if cards are named, the first sampler is"
            " the cards', vllm or llama.cpp, and the second the processor's, llama.cpp or torch.",
            'Write for example `samplers = ["vllm", "torch"]` with `devices = ["gpu 0", "cpu"]`.',
        ),
        *(
            (
                on_processor and is_set,
                f"`samplers` under [rollout] lists samplers on the processor, and {key} cannot be with them.",
                "Remove one of them.",
            )
            for key, is_set in too_much.items()
        ),
    )
    return not on_processor


def _sampler_contradictions(
    machine: Machine, software: Software, choices: Choices, rollout: tuple[str, ...] | None
) -> tuple[Contradiction, ...]:
    kind = choices.sampler
    vllm, traits = kind == "vllm", SAMPLERS.get(kind)
    return (
        (
            choices.weights == BFLOAT16 and traits is not None and BFLOAT16 not in traits.weights
            and choices.next_to_cards != "torch",
            f'`weights = "{BFLOAT16}"` under [rollout] is torch\'s, and `sampler = "{kind}"` is set too.',
            "Remove one of them.",
        ),
        (
            vllm and bool(choices.llama),
            f'`{choices.llama}` under [rollout] is llama.cpp\'s, and `sampler = "vllm"` is set too.',
            "Remove one of them.",
        ),
        (
            vllm and not software.vllm,
            '`sampler = "vllm"` under [rollout] cannot be: there is no vLLM that works here.',
            software.vllm_reason or 'Install it, or write `sampler = "auto"`.',
        ),
        (
            vllm and rollout == () and bool(machine.gpus),
            '`sampler = "vllm"` and `devices = ["cpu"]` under [rollout] contradict each other.',
            "This vLLM computes on cards.",
        ),
        (
            traits is not None and not traits.cards and bool(rollout),
            f'`sampler = "{kind}"` under [rollout] computes on the processor, and `devices` names cards.',
            'Write `devices = ["cpu"]`, or `samplers = ["vllm", "torch"]`, or another sampler.',
        ),
    )  # fmt: skip


def _trainer_contradictions(
    machine: Machine, software: Software, choices: Choices, training: tuple[str, ...] | None
) -> tuple[Contradiction, ...]:
    four_bits = choices.precision == "nf4"
    able = software.torch_cuda and any(gpu.kind in TORCH_KINDS for gpu in machine.gpus)
    return (
        (
            bool(training) and not software.torch_cuda,
            "`devices` under [training] names cards, and torch does not reach them.",
            software.torch_reason or 'Write `devices = ["cpu"]` there.',
        ),
        (
            four_bits and (training == () or not able),
            '`precision = "nf4"` under [training] needs a card that torch trains on.',
            "",
        ),
        (
            four_bits and not software.bitsandbytes,
            '`precision = "nf4"` under [training] needs bitsandbytes, which is not installed.',
            'Install bitsandbytes, or write `precision = "auto"`.',
        ),
    )


def _sharing_contradictions(
    machine: Machine, choices: Choices, rollout: tuple[str, ...] | None, training: tuple[str, ...] | None
) -> tuple[Contradiction, ...]:
    key, cards = f'`share = "{choices.share}"` under [resources]', bool(machine.gpus)
    other_sampler = bool(choices.llama) or choices.sampler in ("llama.cpp", "torch")
    return (
        (
            cards and (rollout == () or training == ()),
            f"{key} contradicts `devices`, which puts a stage on the processor.",
            "",
        ),
        (
            bool(rollout and training) and not set(rollout or ()) & set(training or ()),
            f"{key} contradicts `devices`, which names different cards for sampling and training.",
            "",
        ),
        (
            cards and choices.share == "base" and choices.precision in ("nf4", "f32"),
            f'{key} needs `precision = "bf16"`: the trainer reads vLLM\'s own weights.',
            "",
        ),
        (
            choices.share == "base" and other_sampler,
            f"{key} is for vLLM, and [rollout] chooses another sampler.",
            "",
        ),
    )


# Several machines: ``gpu 0`` and ``cpu`` are devices of the engine's machine, ``NODE/gpu 0`` is one of another node,
# ``NODE`` is all of it.


def choices_by_node(nodes: Sequence[UsableNode], choices: Choices) -> dict[str, tuple[Choices, bool, bool]]:
    """For each node, by its id: its choices, and whether it may sample and may train.

    Raises ``ConfigError`` for names that no node has.
    """
    rollout = _by_node(nodes, choices.rollout, "[rollout]")
    training = _by_node(nodes, choices.training, "[training]")
    return {
        node.node: (
            replace(choices, rollout=rollout.get(node.node, ()), training=training.get(node.node, ())),
            not choices.rollout or node.node in rollout,
            not choices.training or node.node in training,
        )
        for node in nodes
    }


def _by_node(nodes: Sequence[UsableNode], names: Sequence[str], table: str) -> dict[str, list[str]]:
    """The named devices of each node; none for a node that is named as a whole."""
    devices: dict[str, list[str]] = {}
    ids = {word.lower(): node.node for node in nodes for word in (node.name, node.node) if word}
    for name in names:
        before, slash, device = name.strip().partition("/")
        node = ids.get(before.lower())
        if slash and node is None:
            known = listed([node.name for node in nodes])
            raise ConfigError(f"`devices` under {table} names the node {before!r}.", f"There are: {known}.")
        if node is not None and (slash or not _is_processor(before)):
            devices.setdefault(node, []).extend([device] if slash else [])
        elif any(not node.node for node in nodes):
            devices.setdefault("", []).append(name)
        else:
            raise ConfigError(
                f"`devices` under {table} has {name!r}, and the engine's own machine is not to be used.",
                "Write NODE/ before it, or undrain the machine.",
            )
    return devices


def listed(words: Sequence[str]) -> str:
    """``a, b and c``."""
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} and {words[-1]}"
