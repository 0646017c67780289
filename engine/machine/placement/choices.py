"""Wanted devices by ``marlaas.toml``, measurements, and a processor's consequences. Pure.

Contradictions are errors; fitting is checked later.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import NamedTuple

from ...devices.machine import (
    Cpu,
    Gpu,
    Machine,
    Place,
    Placement,
    Precision,
    SamplerAssignment,
    SamplerKind,
    Software,
    TrainerAssignment,
    UsableNode,
)
from ...errors import ConfigError
from ...home.settings import RolloutSettings, Settings
from ...models.config import BFLOAT16, GGUF, SAMPLERS, BaseConfig
from ...models.memory import FLOAT, SMALL, Wanted

CPU = "cpu"


@dataclass(frozen=True)
class Choices:
    """From ``marlaas.toml``; ``auto`` and empty: free."""

    sampler: str = "auto"
    rollout: Sequence[str] = ()
    """Under [rollout]: ``cpu``, cards by label (``gpu 0``) or beginning of id."""
    training: Sequence[str] = ()
    precision: str = "auto"
    share: str = "auto"
    """Under [resources]: ``memory`` lets one card sample and train."""
    llama: str = ""
    """Set key of llama.cpp's under [rollout], ``weights`` or ``gguf``."""
    weights: str = "auto"
    next_to_cards: str = ""
    """The processor's sampler next to cards."""


class Copy(NamedTuple):
    """A processor's form of the base."""

    sampler: SamplerKind
    weights: str
    """Of ``models.config.BITS``; empty: by the settings."""

    def __str__(self) -> str:
        return f"{self.sampler} {self.weights}".strip()


@dataclass(frozen=True)
class CopySpeed:
    """A measured copy."""

    copy: Copy
    seconds: float
    """Seconds of sampling for a step of the default task."""
    gap: float
    """Mean difference to the trainer's log-probabilities, nats."""


def choices_of(settings: Settings) -> Choices:
    """Settings for the placement; the first of ``samplers`` is the cards'."""
    rollout, training = settings.rollout, settings.training
    on_cards, on_processor, *_ = *(rollout.samplers or (rollout.sampler,)), ""
    weights_named = rollout.weights not in ("auto", BFLOAT16)
    llama = "gguf" if rollout.gguf else "weights" if weights_named else ""
    return Choices(
        sampler=on_cards,
        rollout=rollout.devices,
        training=training.devices,
        precision=training.precision,
        share="memory" if settings.resources.share == "base" else settings.resources.share,
        llama="" if on_processor == "llama.cpp" and on_cards == "vllm" else llama,
        weights=rollout.weights,
        next_to_cards=on_processor,
    )


@dataclass(frozen=True)
class NamedDevices:
    """Named devices by stage; None: the best."""

    rollout: tuple[str, ...] | None
    """Ids of cards; empty: the processor."""
    training: tuple[str, ...] | None
    processor_too: bool = False
    """The processor samples next to the cards."""


def named_devices(machine: Machine, software: Software, choices: Choices) -> NamedDevices:
    """Raises ``ConfigError`` for unknown names and contradictions."""
    both = any(map(_is_processor, choices.rollout)) and not all(map(_is_processor, choices.rollout))
    rollout = _devices([name for name in choices.rollout if not (both and _is_processor(name))], machine, "[rollout]")
    training = _devices(choices.training, machine, "[training]")
    refuse(
        *_contradictions(machine, software, choices, rollout, training),
        (
            bool(set(rollout or ()) & set(training or ())) and len(training or ()) > 1,
            "`devices` under [rollout] and [training] name the same card and further ones for training.",
            "A card that samples, too, must be the trainer's only one.",
        ),
    )
    return NamedDevices(rollout, training, both)


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
"""If it holds, what is wrong, the remedy."""


def refuse(*contradictions: Contradiction) -> None:
    """Raises ``ConfigError`` for the first."""
    for holds, message, hint in contradictions:
        if holds:
            raise ConfigError(message, hint)


def may_use_cards(settings: Settings) -> bool:
    """True if ``samplers`` leaves cards to marlaas.

    Raises ``ConfigError`` if it contradicts other settings.
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


def _contradictions(
    machine: Machine,
    software: Software,
    choices: Choices,
    rollout: tuple[str, ...] | None,
    training: tuple[str, ...] | None,
) -> tuple[Contradiction, ...]:
    kind, vllm, traits = choices.sampler, choices.sampler == "vllm", SAMPLERS.get(choices.sampler)
    four_bits, cards = choices.precision == "nf4", bool(machine.gpus)
    able = software.torch_cuda and any(gpu.kind == "cuda" for gpu in machine.gpus)
    shares, key = choices.share != "auto", f'`share = "{choices.share}"` under [resources]'
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
        (
            shares and cards and (rollout == () or training == ()),
            f"{key} contradicts `devices`, which puts a stage on the processor.",
            "",
        ),
        (
            shares and bool(rollout and training) and not set(rollout or ()) & set(training or ()),
            f"{key} contradicts `devices`, which names different cards for sampling and training.",
            "",
        ),
    )  # fmt: skip


# ``gpu 0`` and ``cpu`` are the engine's machine's, ``NODE/gpu 0`` another's, ``NODE`` is all of it.


def choices_by_node(nodes: Sequence[UsableNode], choices: Choices) -> dict[str, tuple[Choices, bool, bool]]:
    """By node: choices, may sample, may train.

    Raises ``ConfigError`` for unknown names.
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
    """Empty: a node named as a whole."""
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


BFLOAT16_FROM = 3.0
"""Least speed of bfloat16 over float32 for training and sampling in it. AMX: 5 to 8, training takes 0.33 to 0.53 of the
time (bases 256 to 896 wide). AVX-512 BF16: 2.0, SmolLM2-135M 0.9 of the time, for six times the gap."""
MODEST = 4 * SMALL
"""Bytes of float32 weights for a torch float32 candidate: 67 million parameters."""
SLOWER = 1.15
"""Of the fastest copy's time, for a more exact one; less is not felt."""


def is_small(parameters: int) -> bool:
    """True if a card would be busier starting kernels than computing."""
    return FLOAT * parameters <= SMALL


def copies_on(cpu: Cpu, wanted: Wanted, choices: Choices) -> tuple[Copy, ...]:
    """Candidate copies; the first until measured.

    With fast bfloat16, torch in it is several times as fast as llama.cpp with 64 conversations.
    """
    from ...models.config import unsupported  # loads numpy, which the command line does without

    kind, weights, able = choices.sampler, choices.weights, not unsupported(wanted.config)
    small = is_small(wanted.parameters)
    fast = cpu.rates is not None and cpu.rates.gain >= BFLOAT16_FROM and not small and able
    rounded = (Copy("torch", BFLOAT16),) if weights == BFLOAT16 or (weights == "auto" and fast) else ()
    exact = (Copy("torch", "f32"),)
    if kind == "vllm":
        return (Copy("vllm", "f32"),)
    if kind == "torch" or (kind == "auto" and weights == BFLOAT16):
        return rounded if weights == BFLOAT16 else rounded + exact
    if choices.llama or weights != "auto":
        return (Copy("llama.cpp", ""),)
    if small:
        return exact if kind == "auto" and able else (Copy("llama.cpp", "f32"),)
    llama = (Copy("llama.cpp", "f16"), Copy("llama.cpp", "q8_0"))
    if kind == "llama.cpp" or not able:
        return llama
    return rounded + llama + (exact if FLOAT * wanted.parameters <= MODEST else ())


def best(measured: Sequence[CopySpeed]) -> CopySpeed:
    """The smallest gap among the fastest; at least one is measured."""
    fastest = min(speed.seconds for speed in measured)
    enough = (speed for speed in measured if speed.seconds <= SLOWER * fastest)
    return min(enough, key=lambda speed: (speed.gap, speed.seconds))


def usual_sampler(config: BaseConfig, parameters: int) -> SamplerKind:
    """Torch up to ``SMALL``; larger bases are measured.

    With 64 conversations, 1 to 32 versions, its pass is 1.8 to 5 times as fast as llama.cpp's.
    """
    from ...models.config import unsupported  # as above

    return "torch" if is_small(parameters) and not unsupported(config) else "llama.cpp"


def processor_precision(cpu: Cpu, wanted: Wanted, choices: Choices) -> Precision:
    """By the settings, else by the processor's speed."""
    if choices.precision != "auto":
        return "bf16" if choices.precision == "bf16" else "f32"
    fast = decides_precision(wanted.parameters, choices.precision) and cpu.rates and cpu.rates.gain >= BFLOAT16_FROM
    return "bf16" if fast else "f32"


def decides_precision(parameters: int, precision: str) -> bool:
    """True if the processor's speed decides."""
    return precision == "auto" and not is_small(parameters)


def decides_weights(parameters: int, rollout: RolloutSettings) -> bool:
    """True if the processor's speed decides sampler or form of the base."""
    free = rollout.weights == "auto" and not rollout.gguf and not rollout.samplers
    return free and rollout.sampler in ("auto", "torch") and not is_small(parameters)


def processor_sampler(
    name: str, place: Place, wanted: Wanted, choices: Choices, measured: Sequence[CopySpeed], cpu: Cpu
) -> SamplerAssignment:
    """With the best measured copy, or the usual."""
    available = copies_on(cpu, wanted, choices)
    free = {*available, Copy("llama.cpp", GGUF)} if len(available) > 1 else ()
    fitting = [speed for speed in measured if speed.copy in free]
    kind, weights = best(fitting).copy if fitting else available[0]
    return SamplerAssignment(name, kind, place, weights=weights if fitting or weights == BFLOAT16 else "")


def allowed(cpu: Cpu) -> tuple[int, ...]:
    """Cores to pin: no more than the processor time available."""
    return tuple(sorted(cpu.cores))[: max(1, cpu.count)]


SAMPLER, TRAINER = "rollout", "training"
"""Further workers have a number."""


def numbered_name(name: str, number: int) -> str:
    """``rollout``, ``rollout-2``, …"""
    return name if number == 1 else f"{name}-{number}"


def spread(cores: Sequence[int], workers: int) -> list[Place]:
    """Equal cores each; too few are shared."""
    many = len(cores)
    if many <= workers:
        return [Place((cores[number % many],) if many else ()) for number in range(workers)]
    bounds = [many * number // workers for number in range(workers + 1)]
    return [Place(tuple(cores[a:b])) for a, b in pairwise(bounds)]


def halves(cores: Sequence[int], samplers: int = 1) -> tuple[list[Place], Place]:
    """Half for samplers, half for the trainer.

    Spinning threads that share a core are ten times slower and more. With too few cores each sampler has one and the
    trainer is not pinned; on one core no worker is.
    """
    if len(cores) < 2:
        return [Place()] * samplers, Place()
    if len(cores) <= samplers:
        return spread(cores, samplers), Place()
    half = max(samplers, len(cores) // 2)
    return spread(cores[:half], samplers), Place(tuple(cores[half:]))


def on_cores(kinds: Sequence[SamplerKind], cores: Sequence[int]) -> Placement:
    """These samplers and a trainer."""
    places, rest = halves(cores, len(kinds))
    samplers = tuple(
        SamplerAssignment(numbered_name(SAMPLER, number), kind, place)
        for number, (kind, place) in enumerate(zip(kinds, places, strict=True), 1)
    )
    return Placement(samplers, TrainerAssignment(TRAINER, rest))
