"""What ``marlaas.toml`` says about devices, checked against the machine. Pure.

Names become cards, and contradictions an error. Whether a base fits is checked later.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from ...base import BFLOAT16, SAMPLERS
from ...devices import Gpu, Machine, SamplerKind, Sharing, Software
from ...errors import ConfigError
from .words import together

CPU = "cpu"
TORCH_KINDS = ("cuda", "rocm")
"""Kinds of cards that torch trains on."""


@dataclass(frozen=True)
class Wishes:
    """On which devices the user wants each stage; None: on the best ones."""

    rollout: tuple[str, ...] | None
    """Ids of cards; empty: on the processor."""
    training: tuple[str, ...] | None
    beside: bool | None = None
    """Whether the processor is to sample beside the cards for ``rollout``; None: where it gains."""

    @property
    def together(self) -> bool:
        """Whether a card is named for both."""
        return bool(set(self.rollout or ()) & set(self.training or ()))

    def may_sample(self, uuid: str) -> bool:
        """Whether the card may serve rollout: it is named, or nothing is."""
        return self.rollout is None or uuid in self.rollout

    def may_train(self, uuid: str) -> bool:
        """Whether the card may train: it is named, or nothing is."""
        return self.training is None or uuid in self.training


def checked(machine: Machine, software: Software, choices: Choices) -> Wishes:
    """The wishes. Raises ``ConfigError`` for names that this machine does not have, and for contradictions."""
    both = _names_both(choices.rollout)
    cards = [name for name in choices.rollout if not (both and _is_processor(name))]
    rollout = _devices(cards, machine, "[rollout]")
    training = _devices(choices.training, machine, "[training]")
    _check_sampler(machine, software, choices, rollout)
    _check_trainer(machine, software, choices, training)
    if choices.share != "auto":
        _check_sharing(choices, rollout, training, cards=bool(machine.gpus))
    wishes = Wishes(rollout, training, both if choices.rollout else None)
    if wishes.together and len(training or ()) > 1:
        raise ConfigError(
            "`devices` under [rollout] and [training] name the same card and further ones for training.",
            "A card that samples, too, must be the trainer's only one.",
        )
    return wishes


def _is_processor(name: str) -> bool:
    return name.strip().lower() == CPU


def _names_both(names: Sequence[str]) -> bool:
    """Whether the processor is named beside cards."""
    return any(map(_is_processor, names)) and not all(map(_is_processor, names))


def _devices(names: Sequence[str], machine: Machine, table: str) -> tuple[str, ...] | None:
    if not names:
        return None
    words = [name.strip().lower() for name in names]
    if CPU in words:
        if len(words) > 1:
            raise ConfigError(f"`devices` under {table} names the processor and cards.", "Name one or the other.")
        return ()
    return tuple(dict.fromkeys(_card(name, machine.gpus, table) for name in names))


def _card(name: str, gpus: Sequence[Gpu], table: str) -> str:
    word = name.strip().lower()
    found = [gpu.uuid for gpu in gpus if gpu.label == word]
    found = found or [gpu.uuid for gpu in gpus if word and gpu.uuid.lower().startswith(word)]
    if len(found) != 1:
        known = together([CPU, *(gpu.label for gpu in gpus)])
        many = "several cards" if found else "no device that may be used here"
        raise ConfigError(f"`devices` under {table} has {name!r}, which is {many}.", f"There are: {known}.")
    return found[0]


def _check_sampler(machine: Machine, software: Software, choices: Choices, rollout: tuple[str, ...] | None) -> None:
    kind = choices.sampler
    if (
        choices.weights == BFLOAT16
        and kind != "auto"
        and BFLOAT16 not in SAMPLERS[kind].weights
        and choices.beside != "torch"
    ):
        raise ConfigError(
            f'`weights = "{BFLOAT16}"` under [rollout] is torch\'s, and `sampler = "{kind}"` stands beside it.',
            "Remove one of them.",
        )
    if kind == "vllm" and choices.llama:
        raise ConfigError(
            f'`{choices.llama}` under [rollout] is llama.cpp\'s, and `sampler = "vllm"` stands beside it.',
            "Remove one of them.",
        )
    if kind == "vllm" and not software.vllm:
        raise ConfigError(
            '`sampler = "vllm"` under [rollout] cannot be: there is no vLLM that works here.',
            software.vllm_reason or 'Install it, or write `sampler = "auto"`.',
        )
    if kind == "vllm" and rollout == () and machine.gpus:
        raise ConfigError(
            '`sampler = "vllm"` and `devices = ["cpu"]` under [rollout] contradict each other.',
            "This vLLM computes on cards.",
        )
    if kind != "auto" and not SAMPLERS[kind].cards and rollout:
        raise ConfigError(
            f'`sampler = "{kind}"` under [rollout] computes on the processor, and `devices` names cards.',
            'Write `devices = ["cpu"]`, or `samplers = ["vllm", "torch"]`, or another sampler.',
        )


def _check_trainer(machine: Machine, software: Software, choices: Choices, training: tuple[str, ...] | None) -> None:
    if training and not software.torch_cuda:
        reason = software.torch_reason or 'Write `devices = ["cpu"]` there.'
        raise ConfigError("`devices` under [training] names cards, and torch does not reach them.", reason)
    able = software.torch_cuda and any(gpu.kind in TORCH_KINDS for gpu in machine.gpus)
    if choices.precision == "nf4" and (training == () or not able):
        raise ConfigError('`precision = "nf4"` under [training] needs a card that torch trains on.')
    if choices.precision == "nf4" and not software.bitsandbytes:
        raise ConfigError(
            '`precision = "nf4"` under [training] needs bitsandbytes, which is not installed.',
            'Install bitsandbytes, or write `precision = "auto"`.',
        )


def _check_sharing(
    choices: Choices, rollout: tuple[str, ...] | None, training: tuple[str, ...] | None, cards: bool
) -> None:
    words = f'`share = "{choices.share}"` under [resources]'
    if cards and (rollout == () or training == ()):
        raise ConfigError(f"{words} contradicts `devices`, which puts a stage on the processor.")
    if rollout and training and not set(rollout) & set(training):
        raise ConfigError(f"{words} contradicts `devices`, which names different cards for sampling and training.")
    if cards and choices.share == "base" and choices.precision in ("nf4", "f32"):
        raise ConfigError(f'{words} needs `precision = "bf16"`: the trainer reads vLLM\'s own weights.')
    if choices.share in ("base", "sleep") and (choices.llama or choices.sampler in ("llama.cpp", "torch")):
        raise ConfigError(f"{words} is for vLLM, and [rollout] chooses another sampler.")


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
    beside: str = ""
    """The sampler on the processor beside cards, where ``samplers`` names one."""
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

    Before anything is measured, sampling is taken to be twice the work of training: published systems spend two to five
    times as long on it, and a card too many at rollout costs less than one too few, as training can wait for none.
    """

    sampling: float = 2.0
    training: float = 1.0
    measured: bool = False
    beside: bool = False
    """Whether these are what is left for one node, beside what others do."""
    copies: Sequence[CopySpeed] = ()
    """The copies of this base that were measured on this processor."""

    def __post_init__(self) -> None:
        """Raise ``ValueError`` where a stage takes no time."""
        if not (self.sampling > 0 and self.training > 0):
            raise ValueError("a stage takes more than no time")
