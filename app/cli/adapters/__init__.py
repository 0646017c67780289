"""``adapters list | export | name | rollback | delete``: what was learned, and taking it away."""

from __future__ import annotations

import argparse
import time
from dataclasses import asdict
from pathlib import Path

from ... import output
from ...words.format import ago, line, plain, size
from ...words.held_out import with_error
from ..choosing import adapter_of, add_task
from ..verbs import ADAPTER, Verbs, add_family, add_verb, home_of
from . import delete, name, rollback


def register(verbs: Verbs) -> None:
    """Add the family."""
    family = add_family(verbs, "adapters", "list, export, name, roll back and delete trained adapters")
    listing = add_verb(family, "list", list_versions, "list adapter versions, newest first", json=True)
    add_task(listing, "only of this task, by number or name", optional=True)
    export = add_verb(family, "export", run_export, "write an adapter as a PEFT folder", json=True)
    export.add_argument("adapter", metavar="ID|NAME", help=ADAPTER)
    export.add_argument("--out", type=Path, required=True, metavar="DIR", help="the folder to write into")
    export.add_argument("--version", metavar="N|best|last", help="which version (default: best, else last)")
    export.add_argument("--gguf", action="store_true", help="also write a GGUF file for llama.cpp")
    name.register(family)
    rollback.register(family)
    delete.register(family)


def list_versions(args: argparse.Namespace) -> int:
    """Print the versions on disk, and what they and the home take."""
    from marlaas.engine.home import home_size

    from ...reading.opening import find_task, reading
    from ...words.terms import with_new_names

    with reading(home_of(args)) as reader:
        task = find_task(reader, args.task).id if args.task is not None else None
        versions = reader.versions(task, kept=True) if reader else []
    if args.json:
        output.result_json([with_new_names(asdict(version)) for version in versions])
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
                with_error(v.score, v.basis),
                size(v.size),
                ago(v.created, now),
            )
            for v in versions
        ],
        right=("TASK", "VERSION", "HELD-OUT", "SIZE"),
    )
    taken, kept = home_size(home_of(args)), size(sum(version.size for version in versions))
    output.talk(
        f"{len(versions)} version{'s' if len(versions) > 1 else ''}, {kept}. The home takes {size(taken.total)} of the"
        f" disk: adapters {size(taken.adapters)}, database {size(taken.database)}, bases for llama.cpp"
        f" {size(taken.base)}, other {size(taken.other)}."
    )
    return output.OK


def run_export(args: argparse.Namespace) -> int:
    """Export one version."""
    from marlaas.engine.adapters import USE
    from marlaas.engine.submission import choose

    from ...home.doctor.machine import base_folder
    from ...home.exporting import export, no_gain
    from ...reading.opening import reading
    from ...words.terms import with_new_names

    home = home_of(args)
    with reading(home) as reader:
        version = choose(reader.versions() if reader else [], *adapter_of(args))
        warning = no_gain(reader, version) if reader else ""
    base, written = base_folder(home), export(home, version, args.out, args.gguf)
    if args.json:
        output.result_json(
            {"version": with_new_names(asdict(version)), "base": str(base), "files": [str(path) for path in written]}
        )
        return output.OK
    output.talk(f"Version {version.number} of task {version.task} ({line(version.name)}), on the base {base}:")
    for path in written:
        output.result(str(path))
    if warning:
        output.talk(warning)
    output.talk("")
    use = next(path for path in written if path.name == USE)
    output.talk(plain(use.read_text(encoding="utf-8")).rstrip())
    return output.OK
