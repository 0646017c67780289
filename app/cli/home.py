"""``home``, ``doctor`` and ``clean``: make, back up, restore, check, diagnose and tidy a home."""

from __future__ import annotations

import argparse
import shutil
import signal
from dataclasses import asdict
from pathlib import Path

from marlaas.engine.daemon import control
from marlaas.engine.errors import ConfigError
from marlaas.engine.home.paths import Home, check_folder, command_for, is_home

from .. import output
from ..text.format import counted, line, plain, size
from .parser import Verbs, add_family, add_verb, arg, place_of


def run_new(home: Home, args: argparse.Namespace) -> int:
    """Make an empty home; an existing one stays as it is."""

    if args.folder is not None:
        meant = command_for(Home(Path(args.folder)), "home new")
        raise ConfigError("The folder of a new home stands behind --home.", f"Write `{meant}`.")
    check_folder(home)
    there = is_home(home.root)
    control.make_home(home, notice=output.talk)
    if args.json:
        return output.result_json({"home": str(home.root), "plugins": str(home.plugins), "new": not there})
    output.result(str(home.root))
    if there:
        return output.done("It is a home already; nothing was changed.")
    output.talk(f"Environments go into {home.plugins}, settings into {home.config}.")
    return output.done(
        f"`{command_for(home, 'submit FILE')}` adds a task; `export MARLAAS_HOME={home.root}` spares --home."
    )


def run_backup(home: Home, args: argparse.Namespace) -> int:
    """Write the home into one file while the engine runs; report the contents."""

    from ..operations.backups import back_up

    signal.signal(signal.SIGTERM, signal.default_int_handler)
    backup = back_up(home, args.file.absolute(), args.force, output.talk)
    if args.json:
        return output.result_json({**asdict(backup), "file": str(backup.file)})
    for name in backup.missing:
        output.talk(f"Not in the backup, because it is missing in the home: {line(name)}")
    output.result(str(backup.file))
    return output.done(
        f"{counted(backup.files, 'file')}, {size(backup.size)}. `marlaas home restore` makes a home of it."
    )


def run_restore(home: Home, args: argparse.Namespace) -> int:
    """Make a new home from a backup; report the next steps."""

    from ..operations.backups import restore

    signal.signal(signal.SIGTERM, signal.default_int_handler)
    restored = restore(args.file, home, output.talk)
    if args.json:
        return output.result_json(asdict(restored) | {"home": str(restored.home)})
    output.result(str(restored.home))
    output.talk(f"{counted(restored.tasks, 'task')}, {counted(restored.files, 'file')}, {size(restored.size)}.")
    if restored.missing:
        lacking = counted(len(restored.missing), "state file")
        output.talk(f"Not there, because missing in the home when the backup was made: {lacking}.")
    return output.done(f"`marlaas --home {restored.home} home check` proves it, `engine start` goes on training.")


def run_check(home: Home, args: argparse.Namespace) -> int:
    """Prove that nothing was lost or doubled; exit 1: not sound."""

    from ..operations.checking import check_home

    if not home.database.exists():
        raise ConfigError(f"There is no home at {home.root}.", "Give another --home; `marlaas submit` makes one.")
    report = check_home(home.root, output.talk)
    if args.json:
        names = ("problems", "lost", "spare", "proven", "unknown")
        output.result_json({"ok": report.sound, **{name: getattr(report, name) for name in names}})
    else:
        for text in report.lines():
            output.result(plain(text).replace("\n", " "))
    return output.OK if report.sound else output.FAILED


_MARKS = {"ok": "✓", "note": "!", "missing": "✗"}


def run_doctor(home: Home, args: argparse.Namespace) -> int:
    """Print the machine's equipment, gaps and remedies; exit 2: something is missing."""
    from ..operations.doctor import devices_json, examine, settings_of, surveyed

    if args.measure:
        output.talk("Measuring processor and cards: some seconds for each …")
    seen = surveyed(home, settings_of(home).resources, args.measure)
    findings = examine(home, seen)
    missing = [finding for finding in findings if finding.verdict == "missing"]
    if args.json:
        found = [asdict(finding) for finding in findings]
        output.result_json({"ok": not missing, "findings": found, "devices": devices_json(seen)})
    else:
        for finding in findings:
            heard = f"{finding.verdict}, " if output.is_plain() else ""
            output.fact(finding.name, f"{heard}{finding.value}", 10, f"{_MARKS[finding.verdict]} ")
            if finding.advice:
                output.result(f"  {'':<10} → {finding.advice}")
        output.talk("Something is missing." if missing else "All that is needed is here.")
    return output.USAGE if missing else output.OK


def run_clean(home: Home, args: argparse.Namespace) -> int:
    """List the folders in lost+found by task, and remove them on request; an engine may run meanwhile."""

    from marlaas.engine.adapters.statefile import lost_files

    lost = lost_files(home.lost)
    for one in lost if args.yes else ():
        shutil.rmtree(one.folder)
    if args.json:
        folders = [{"folder": str(one.folder), "files": one.files, "bytes": one.size} for one in lost]
        return output.result_json({"lost": folders, "removed": args.yes})
    for one in lost:
        output.result(f"{one.folder}: {counted(one.files, 'file')}, {size(one.size)}")
    if not lost:
        return output.done("lost+found is empty.")
    removed = f"Removed: {size(sum(one.size for one in lost))}."
    return output.done(removed if args.yes else "`marlaas clean --yes` removes them; this cannot be undone.")


def register(verbs: Verbs) -> None:
    """Add the verbs."""
    family = add_family(verbs, "home", "make, back up, restore and check a home: all tasks, adapters and environments")
    add_verb(
        family,
        "new",
        run_new,
        "make an empty home at --home, with its settings and a folder for environments",
        arg("folder", nargs="?", help=argparse.SUPPRESS),  # people write it here first
        json=True,
        home=place_of,
        epilog="All other verbs refuse a --home that is none, so that a mistyped one is noticed. The default place"
        " needs no such step: the first task that is submitted makes a home there.",
    )
    add_verb(
        family,
        "backup",
        run_backup,
        "write a home into one file, while its engine trains on",
        arg("file", type=Path, metavar="FILE", help="the file to write, outside of the home: marlaas.tar"),
        arg("--force", action="store_true", help="replace the file where it exists, once the new one is whole"),
        json=True,
        epilog="It holds tasks, results, adapters, settings and plugins of one moment; not the base model, libraries of"
        " plugins, logs and what else is made again. `marlaas home restore` makes a home of it.",
    )
    add_verb(
        family,
        "restore",
        run_restore,
        "make a new home from a backup: all of it, or nothing if anything of it is wrong",
        arg("file", type=Path, metavar="FILE", help="what `marlaas home backup` wrote"),
        json=True,
        home=place_of,
        epilog="Restore only what you trust: plugins and the command under [notify] are programs that the engine runs.",
    )
    add_verb(
        family,
        "check",
        run_check,
        "prove that nothing in a home was lost, doubled or damaged; an engine may run meanwhile",
        json=True,
        epilog="Exit code 1 where something is wrong or was lost. What cannot be known, because files were given up"
        " for room, is counted.",
    )
    add_verb(
        verbs,
        "doctor",
        run_doctor,
        "look at this machine and say what is missing",
        arg("--measure", action="store_true", help="measure anew how fast processor and cards are"),
        json=True,
    )
    add_verb(
        verbs,
        "clean",
        run_clean,
        "show what is in the home's lost+found, and remove it with --yes",
        arg("--yes", action="store_true", help="remove it; this cannot be undone"),
        json=True,
        epilog="Files come there when a version turned out to be damaged or gone; nothing there is ever used again.",
    )
