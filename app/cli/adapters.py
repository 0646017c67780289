"""``adapters list | export | delete``: what was learned, and taking it away."""

from __future__ import annotations

import argparse
import time
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from .. import output
from ..format import ago, line, score, size
from . import adapters_delete
from .verbs import Verbs, add_family, add_verb, home_of, task_number

if TYPE_CHECKING:
    from marlaas.engine.paths import Home
    from marlaas.engine.store.rows import VersionRow


def register(verbs: Verbs) -> None:
    """Add the family."""
    family = add_family(verbs, "adapters", "list, export and delete trained adapters")
    listing = add_verb(family, "list", list_versions, "list adapter versions, newest first", json=True)
    listing.add_argument("task", type=task_number, nargs="?", metavar="ID", help="only of this task")
    export = add_verb(family, "export", run_export, "write an adapter as a PEFT folder", json=True)
    export.add_argument("adapter", metavar="ID|NAME", help="a task's number or name, or a version's name")
    export.add_argument("--out", type=Path, required=True, metavar="DIR", help="the folder to write into")
    export.add_argument("--version", metavar="N|best|last", help="which version (default: best, else last)")
    export.add_argument("--gguf", action="store_true", help="also write a GGUF file for llama.cpp")
    adapters_delete.register(family)


def list_versions(args: argparse.Namespace) -> int:
    """Print the versions on disk."""
    from .reading import find_task, reading

    with reading(home_of(args)) as reader:
        if args.task is not None:
            find_task(reader, args.task)
        versions = [v for v in (reader.versions(args.task) if reader else []) if v.state == "committed"]
    if args.json:
        output.result_json([asdict(version) for version in versions])
        return output.OK
    if not versions:
        output.talk("No adapters yet; a task's first version appears when it starts.")
        return output.OK
    now = time.time()
    output.result_table(
        ("TASK", "TENANT", "NAME", "VERSION", "LABEL", "HELD-OUT", "SIZE", "MADE"),
        [
            (
                str(v.task),
                line(v.tenant, 24),
                v.name,
                str(v.number),
                v.label,
                score(v.score),
                size(v.size),
                ago(v.created, now),
            )
            for v in versions
        ],
        right=("TASK", "VERSION", "HELD-OUT", "SIZE"),
    )
    return output.OK


def run_export(args: argparse.Namespace) -> int:
    """Export one version."""
    from marlaas.engine.adapters.export import export_adapter
    from marlaas.engine.config import load_settings

    from ..machine import base_folder
    from .reading import reading

    home = home_of(args)
    with reading(home) as reader:
        version = choose(reader.versions() if reader else [], args.adapter, args.version)
    base = base_folder(home)
    state, task = _state_file(home, version), line(version.task_name)
    brought = load_settings(home).rollout.gguf
    written = export_adapter(state, base, args.out, args.gguf, task, version.checksum, brought)
    if args.json:
        output.result_json({"version": asdict(version), "base": str(base), "files": [str(path) for path in written]})
        return output.OK
    output.talk(f"Version {version.number} of task {version.task} ({line(version.name)}), on the base {base}:")
    for path in written:
        output.result(str(path))
    return output.OK


def choose(versions: list[VersionRow], adapter: str, which: str | None) -> VersionRow:
    """The version that a person means by a task's number or name, or by a version's own name."""
    from marlaas.engine.errors import AdapterError

    kept = sorted((v for v in named_by(versions, adapter) if v.state == "committed"), key=lambda v: v.number)
    wanted = _pick(kept, which)
    if wanted is None:
        numbers = ", ".join(str(v.number) for v in kept) or "none"
        version = f"version {which!r}" if which else "version"
        raise AdapterError(f"Adapter {adapter!r} has no {version} on disk.", f"On disk: {numbers}.")
    return wanted


def named_by(versions: list[VersionRow], adapter: str) -> list[VersionRow]:
    """All versions that a task's number or name means, or the one of that name; they belong to one task."""
    from marlaas.engine.errors import AdapterError, ConfigError

    named = [v for v in versions if v.name == adapter]
    if named:
        found = named
    elif adapter.isdigit():
        found = [v for v in versions if v.task == int(adapter)]
    else:
        found = [v for v in versions if v.task_name == adapter]
    if not found:
        raise AdapterError(f"There is no adapter {adapter!r}.", "`marlaas adapters list` shows them.")
    if len({v.task for v in found}) > 1:
        numbers = ", ".join(str(number) for number in sorted({v.task for v in found}))
        raise ConfigError(f"Several tasks are named {adapter!r}: {numbers}.", "Give the task's number.")
    return found


def _pick(kept: list[VersionRow], which: str | None) -> VersionRow | None:
    """One of the versions (oldest first) by number or label; without a wish the best, else the last."""
    best, last = ([v for v in kept if label in v.label] for label in ("best", "last"))
    if which in (None, "best", "last"):
        among = {None: best or last or kept, "best": best, "last": last or kept}[which]
        return among[-1] if among else None
    return next((v for v in kept if str(v.number) == which), None)


def _state_file(home: Home, version: VersionRow) -> Path:
    """Where the version's state file lies; the store may name it relative to the home."""
    return home.root / version.path
