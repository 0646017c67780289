"""``base check``: is this machine fit for this base? Plans, writes, measures, and says it in words."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from marlaas.engine.base import BFLOAT16, PRECISIONS

from ... import output
from ...words.format import count, line, number, size
from ...words.machine.fitness import judge, spoken
from ..verbs import Verbs, add_verb, home_of
from .download import download

if TYPE_CHECKING:
    from marlaas.engine.base import BaseModel, MemoryPlan
    from marlaas.engine.devices import Precision, Survey
    from marlaas.engine.home import Home, Settings
    from marlaas.engine.rollout import Renderer
    from marlaas.engine.run import Tried

WORTHWHILE = 1.15
"""A setting is only recommended where it is this many times as fast; less is noise."""
ASKED = ("f32", "f16", "q8_0")
"""Precisions that are tried where none is named; and bfloat16 where an engine would sample in it."""
KNOWN = (*PRECISIONS, BFLOAT16)


def register(family: Verbs) -> None:
    """Add the verb."""
    check = add_verb(
        family,
        "check",
        run,
        "measure a base on this machine: memory, context, seconds a step",
        json=True,
        epilog="Writes the base for llama.cpp into the home, once for each precision, and runs a step of the default"
        " task with real workers. An engine of this home that is at work meanwhile slows it down.",
    )
    check.add_argument(
        "name", metavar="NAME", nargs="?", help="tiny, a folder or a Hugging Face name (default: the home's base)"
    )
    check.add_argument(
        "--weights", metavar="LIST", type=_precisions, default=None, help="precisions, as in f16,q8_0 (default: "
        f"{','.join(ASKED)}, and bf16 where an engine would take it; known are {', '.join(KNOWN)})"
    )  # fmt: skip
    check.add_argument("--download", action="store_true", help="fetch it from the Hugging Face hub, or what is missing")


def run(args: argparse.Namespace) -> int:
    """Check the files, plan the memory, measure, judge."""
    import asyncio
    from dataclasses import replace
    from pathlib import Path

    from marlaas.engine.base import anchored, check_base, load_base
    from marlaas.engine.daemon import control
    from marlaas.engine.devices import available_memory
    from marlaas.engine.fleet import with_sampler
    from marlaas.engine.home import load_settings
    from marlaas.engine.rollout import Renderer

    from ...home.doctor.devices import surveyed
    from ...home.doctor.placement import cards_used

    home = home_of(args).create()
    settings = load_settings(home)
    if args.name is not None:
        settings = replace(settings, base=anchored(args.name, Path.cwd()))
    if args.download:
        download(settings.base)
    base = load_base(settings.base)
    check_base(base)
    seen = surveyed(home, settings.resources, missing=decides(base, settings))
    cards = cards_used(base, settings, seen)
    kept = on_this_processor(base, settings, seen)
    if args.weights and settings.rollout.sampler == "auto":  # precisions but bfloat16 are llama.cpp's
        settings = replace(settings, rollout=replace(settings.rollout, sampler="llama.cpp"))
    settings = with_sampler(settings, base)
    renderer = Renderer(base.path)
    free = available_memory(settings.resources.memory)
    asked = args.weights or (*ASKED, *([BFLOAT16] if kept.sampler == BFLOAT16 else []))
    plans = _plans(base, settings, free, asked, kept.trainer, strict=args.weights is not None)
    if control.alive(home):
        output.talk("An engine of this home is running: what it does meanwhile makes the figures worse.")
    if cards:
        output.talk(f"Planned and measured on the processor: an engine would use {line(cards)}, see `marlaas doctor`.")
    report = _Report(args.json, settings, chosen_precision(base, settings, free, kept))
    report.base(base, renderer)
    report.memory(next(iter(plans.values())))
    tried = asyncio.run(_try(home, base, settings, renderer, plans, kept.trainer, report))
    if tried:
        keep_speed(home, base, settings, tried, kept)
    report.end(tried)
    return output.OK


@dataclass(frozen=True)
class Kept:
    """How an engine would keep the base on this machine's processor."""

    trainer: Precision = "f32"
    sampler: str = ""
    """``bf16`` where the torch sampler would keep it so; else empty: as fits."""


DEFAULT = Kept()


def decides(base: BaseModel, settings: Settings) -> bool:
    """Whether it depends on the processor's speed how an engine keeps the base."""
    from marlaas.engine.base import parameters
    from marlaas.engine.fleet import decides_precision, decides_weights

    values = parameters(base)
    return decides_precision(values, settings.training.precision) or decides_weights(values, settings.rollout)


def on_this_processor(base: BaseModel, settings: Settings, seen: Survey) -> Kept:
    """The engine's own decision, without the cards."""
    from dataclasses import replace

    from marlaas.engine.devices import UsableResources
    from marlaas.engine.errors import MarlaasError
    from marlaas.engine.fleet import placed

    machine = replace(seen.usable.machine, gpus=())
    try:
        placement = placed(base, settings, UsableResources(machine), seen.software)
    except MarlaasError:  # settings that ask for cards: the engine reports it where it starts without
        return Kept()
    return Kept(placement.trainer.precision, placement.samplers[0].weights)


def keep_speed(home: Home, base: BaseModel, settings: Settings, tried: Sequence[Tried], kept: Kept) -> None:
    """Keep how fast the base was for estimates, at the precision that the settings lead to, else the fastest."""
    from marlaas.engine.devices import available_memory
    from marlaas.engine.run import speed_of, write_speed

    from ...home.estimating.probing import key_of

    chosen = chosen_precision(base, settings, available_memory(settings.resources.memory), kept)
    best = min(tried, key=lambda one: (one.weights != chosen, one.trial.seconds))
    write_speed(home.speeds, key_of(base, settings), speed_of(best.trial))


def _precisions(text: str) -> tuple[str, ...]:
    named = tuple(part.strip() for part in text.split(",") if part.strip())
    for name in named or ("",):
        if name not in KNOWN:
            raise argparse.ArgumentTypeError(f"{name!r} is no precision; known are {', '.join(KNOWN)}")
    return tuple(dict.fromkeys(named))


def chosen_precision(base: BaseModel, settings: Settings, free: int, kept: Kept = DEFAULT) -> str:
    """The precision that the settings lead to; empty where it has no room."""
    from marlaas.engine.errors import BaseModelError
    from marlaas.engine.fleet import plan_of
    from marlaas.engine.run import with_weights

    try:
        own = with_weights(settings, kept.sampler) if kept.sampler else settings
        return plan_of(base, own, free, precision=kept.trainer).weights
    except BaseModelError:
        return ""


def _plans(
    base: BaseModel, settings: Settings, free: int, asked: tuple[str, ...], trainer: Precision, strict: bool
) -> dict[str, MemoryPlan]:
    """A plan for each precision; those without room are left out, unless they were asked for or none is left."""
    from marlaas.engine.errors import BaseModelError
    from marlaas.engine.fleet import plan_of
    from marlaas.engine.run import precisions, with_weights

    plans, refused = {}, {}
    for weights in precisions(settings, asked):
        try:
            plans[weights] = plan_of(base, with_weights(settings, weights), free, precision=trainer)
        except BaseModelError as error:
            refused[weights] = error
    if refused and (strict or not plans):
        raise list(refused.values())[-1]
    for weights, refusal in refused.items():
        output.talk(f"{weights}: {line(refusal.message)}")
    return plans


async def _try(
    home: Home,
    base: BaseModel,
    settings: Settings,
    renderer: Renderer,
    plans: dict[str, MemoryPlan],
    trainer: Precision,
    report: _Report,
) -> list[Tried]:
    from contextlib import aclosing

    from marlaas.engine.run import try_base

    over = " The trainer keeps the base in bfloat16." if trainer == BFLOAT16 else ""
    output.talk(f"Measuring {', '.join(plans)}: a step of the default task with real workers …{over}")
    tried = []
    async with aclosing(
        try_base(base, home, settings, renderer, plans, trainer)
    ) as found:  # Ctrl-C ends the workers, too
        async for one in found:
            report.tried(one)
            tried.append(one)
    return tried


class _Report:
    """Prints each result once it is known, or all at the end as JSON."""

    def __init__(self, json: bool, settings: Settings, chosen: str) -> None:
        self._json: dict[str, Any] | None = {} if json else None
        self._settings = settings
        self._chosen = chosen
        """The precision that these settings lead to."""

    def base(self, base: BaseModel, renderer: Renderer) -> None:
        """Print what was found of the base."""
        from marlaas.engine.base import parameters

        config, values = base.config, parameters(base)
        if self._json is not None:
            self._json |= {
                "base": self._settings.base,
                "path": str(base.path),
                "fingerprint": base.fingerprint,
                "architecture": config.architecture,
                "parameters": values,
                "thinks": renderer.thinks,
                "warning": renderer.warning,
            }
            return
        output.result(f"base      {line(self._settings.base)}: {config.architecture}, {count(values)} parameters")
        output.result(f"          vocabulary of {config.vocab_size:,}, made for {config.context_length:,} tokens")
        output.result(f"talk      chat template and tokenizer are sound; it {_thinks(renderer)}")
        if renderer.warning:
            output.result(f"          ! {line(renderer.warning)}")

    def memory(self, plan: MemoryPlan) -> None:
        """Print what is planned for the first precision."""
        if self._json is not None:
            return
        lines = [f"{size(value)} {what}" for what, value in plan.lines()[:3]]
        output.result(f"memory    up to {size(plan.total)} with {plan.weights}: {', '.join(lines)}, …")
        output.result(
            f"context   up to {plan.context:,} tokens for each of up to {plan.sequences} conversations at the same time"
        )

    def tried(self, one: Tried) -> None:
        """Print the measurement of one precision."""
        if self._json is not None:
            return
        trial = one.trial
        output.result(
            f"{one.weights:<9} {size(one.file_bytes) if one.file_bytes else 'torch':>7}  a step {spoken(trial.seconds)}"
            f" (sampling {spoken(trial.sampling)}, training {spoken(trial.training)}"
            f"{'' if trial.whole else ', estimated from one group'});"
            f" {size(one.resident)} in memory; gap {number(trial.gap_mean)}, largest gap {number(trial.gap_max)}"
        )

    def end(self, tried: list[Tried]) -> None:
        """Print the verdict on the fastest."""
        from marlaas.engine.run import TASK

        best = min(tried, key=lambda one: one.trial.seconds)
        verdict = judge(best.trial.seconds, TASK.steps)
        if self._json is not None:
            from ...words.terms import with_new_names

            rows = [with_new_names(asdict(one) | {"seconds": one.trial.seconds}) for one in tried]
            output.result_json(self._json | {"tried": rows, "verdict": verdict.word, "text": verdict.text})
            return
        output.result(verdict.text)
        if gain := advice(self._chosen, tried):
            output.result(gain)


def advice(chosen: str, tried: Sequence[Tried]) -> str:
    """What to change in the settings, under which the base is kept as ``chosen``; empty where that gains little."""
    best = min(tried, key=lambda one: one.trial.seconds)
    own = next((one for one in tried if one.weights == chosen), None)
    if own is None or own.trial.seconds < WORTHWHILE * best.trial.seconds:
        return ""
    times = own.trial.seconds / best.trial.seconds
    return f'`weights = "{best.weights}"` under [rollout] in marlaas.toml is {times:.1f} times as fast as {chosen}.'


def _thinks(renderer: Renderer) -> str:
    return "thinks before it answers" if renderer.thinks else "does not think before it answers"
