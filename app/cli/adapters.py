"""``adapters``: list, export, name, roll back and delete versions."""

from __future__ import annotations

import argparse
import time
from dataclasses import asdict
from functools import partial
from pathlib import Path

from marlaas.engine.adapters.use import USE
from marlaas.engine.errors import AdapterError, ConfigError
from marlaas.engine.queue.submission.references import choose, choose_at, named_by
from marlaas.engine.spec.task import served_name
from marlaas.engine.spec.validation import nearest
from marlaas.engine.store.queries.learning import GivenName
from marlaas.engine.store.queries.reader import Reader
from marlaas.engine.store.rows import VersionRow
from marlaas.engine.store.submissions import command

from .. import output
from ..lists.lines import learner, learners
from ..operations.commands import arguments, ask, owner, reference, unanswered, wait_for_outcomes
from ..operations.results import export, no_gain
from ..reading import find_task, reading
from ..text.format import ago, line, plain, size
from ..text.scores import with_error
from ..text.terms import with_new_names
from .parser import ADAPTER, Verbs, adapter_of, add_family, add_task, add_verb, arg, home_of

# ``adapters name``: names of a tenant's own for versions, under which clients of the API find them.


def run_name(args: argparse.Namespace) -> int:
    """List the names, or have the engine give or remove one."""

    if args.name is not None and args.remove == (args.version is not None):
        raise ConfigError("A name is given to a version, or removed.", "Write NAME VERSION, or NAME --remove.")
    with reading(home_of(args)) as reader:
        known = reader.given_names() if reader else []
        if args.name is None:
            return _list(args, known)
        if reader is None:
            raise AdapterError("There are no adapters.", "Nothing was ever trained in this home.")
        if args.remove:
            found = _found(known, args.name, args.tenant)
            return _send(args, reader, "unname", None, found, tenant=found.tenant, name=found.name)
        version = choose_at(reader.versions(), args.version)
        given = _given(version, served_name(args.name))
        before = next((one for one in known if (one.tenant, one.name) == (given.tenant, given.name)), None)
        if before is not None and before.version != given.version:
            output.talk(f"{given.name} meant {line(before.version)} before.")
        if args.tenant not in (None, version.tenant):
            raise ConfigError(f"{reference(version)} is of tenant {version.tenant!r}.", "Leave --tenant out.")
        return _send(args, reader, "name", version.task, given, name=given.name, **arguments(version))


def _list(args: argparse.Namespace, known: list[GivenName]) -> int:
    if args.json:
        return output.result_json([asdict(one) for one in known])
    if not known:
        return output.done("No version has a name yet: `marlaas adapters name NAME VERSION` gives one.")
    rows = [
        (line(one.tenant, 24), one.name, str(one.task), line(one.version), "" if one.kept else "gone") for one in known
    ]
    return output.result_table(("TENANT", "NAME", "TASK", "VERSION", ""), rows, right=("TASK",))


def _found(known: list[GivenName], name: str, tenant: str | None) -> GivenName:

    found = [one for one in known if one.name == name and tenant in (None, one.tenant)]
    if not found:
        names = [one.name for one in known if tenant in (None, one.tenant)]
        raise ConfigError(f"No version has the name {name!r}.", nearest(name, names))
    if len(found) > 1:
        owners = ", ".join(one.tenant for one in found)
        raise ConfigError(f"Several tenants have the name {name!r}: {owners}.", "Give one with --tenant.")
    return found[0]


def _given(version: VersionRow, name: str) -> GivenName:

    return GivenName(version.tenant, name, version.task, version.policy, version.number, version.name, True)


def _send(
    args: argparse.Namespace, reader: Reader, kind: str, task: int | None, about: GivenName, **arguments: object
) -> int:
    """Start the engine if need be, which alone writes names, and report what it answered."""
    from marlaas.engine.daemon import control

    home = home_of(args)
    control.ensure_running(home, notice=output.talk)
    sent = command(home.database, kind, task, **arguments)
    outcome = wait_for_outcomes(reader, [sent]).get(sent)
    if outcome is None:
        raise unanswered()
    if outcome:
        return output.refuse(outcome)
    if args.json:
        output.result_json(asdict(about) | {"removed": kind == "unname"})
    elif kind == "unname":
        output.talk(f"The name {about.name} of tenant {line(about.tenant)} is removed.")
    else:
        output.talk(f"Clients of tenant {line(about.tenant)} find {line(about.version)} as {about.name}.")
    return output.OK


# ``adapters delete``: asks the engine to take adapter versions from the disk, and explains what went.


def run_delete(args: argparse.Namespace) -> int:
    """Start the engine if need be, which alone writes versions; delete, and report names and bytes."""

    home = home_of(args)
    with reading(home) as reader:
        if reader is None:
            raise AdapterError(f"There is no adapter {args.adapter!r}.", "Nothing was ever trained in this home.")
        versions = reader.versions()
        adapter, which = adapter_of(args)
        one = which is not None or any(version.name == adapter for version in versions)
        if one:
            doomed = [choose(versions, adapter, which)]
        else:
            doomed = [version for version in named_by(versions, adapter) if version.state == "committed"]
        if not doomed:
            raise AdapterError(f"Adapter {args.adapter!r} has no version on disk.", "There is nothing to delete.")
        number = doomed[0].task
        wanted = arguments(doomed[0])
        if not one:
            wanted.pop("version")
        if len({version.policy for version in doomed}) > 1:
            wanted.pop("policy")
        outcome = ask(home, reader, "delete", number, **wanted)
    if outcome:
        return output.refuse(outcome)
    total = sum(version.size for version in doomed)
    if args.json:
        return output.result_json({"task": number, "deleted": [version.name for version in doomed], "bytes": total})
    for version in doomed:
        output.result(f"{line(version.name)}: {size(version.size)}")
    return output.done(
        f"Deleted {len(doomed)} version{'s' if len(doomed) > 1 else ''} of task {number}: {size(total)}."
    )


# ``adapters rollback``: asks the engine to let a task go on from an earlier version, and explains what that voids.


def run_rollback(args: argparse.Namespace) -> int:
    """Start the engine if need be, which alone writes versions; roll back, and report the step."""

    home = home_of(args)
    with reading(home) as reader:
        if reader is None:
            raise AdapterError(f"There is no adapter {args.adapter!r}.", "Nothing was ever trained in this home.")
        adapter, which = adapter_of(args)
        if which is None:
            raise ConfigError("No version is given to go on from.", f"Write {adapter}@12, or --version 12.")
        version = choose(reader.versions(), adapter, which)
        before = reader.task(version.task)
        outcome = ask(home, reader, "rollback", version.task, **arguments(version))
    if outcome:
        return output.refuse(outcome)
    made = learners(before)[learner(before, version.policy)].step if before else 0
    lost = max(0, made - version.number)
    if args.json:
        return output.result_json({"task": version.task, "version": version.name, "step": version.number, "void": lost})
    steps = f"{lost} later step{' is' if lost == 1 else 's are'} void"
    return output.done(f"Task {owner(version)} goes on from version {version.number} ({line(version.name)}); {steps}.")


# ``adapters list | export | name | rollback | delete``: what was learned, and taking it away.


def list_versions(args: argparse.Namespace) -> int:
    """Print the versions on disk, and what they and the home take."""
    from marlaas.engine.home.disk import home_size

    with reading(home_of(args)) as reader:
        task = find_task(reader, args.task).id if args.task is not None else None
        versions = reader.versions(task, kept=True) if reader else []
    if args.json:
        return output.result_json([with_new_names(asdict(version)) for version in versions])
    if not versions:
        return output.done("No adapters yet; a task's first version appears when it starts.")
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
    return output.done(
        f"{len(versions)} version{'s' if len(versions) > 1 else ''}, {kept}. The home takes {size(taken.total)} of the"
        f" disk: adapters {size(taken.adapters)}, database {size(taken.database)}, bases for llama.cpp"
        f" {size(taken.base)}, other {size(taken.other)}."
    )


def run_export(args: argparse.Namespace) -> int:
    """Export one version."""

    from ..operations.doctor import base_folder

    home = home_of(args)
    with reading(home) as reader:
        version = choose(reader.versions() if reader else [], *adapter_of(args))
        warning = no_gain(reader, version) if reader else ""
    base, written = base_folder(home), export(home, version, args.out, args.gguf)
    if args.json:
        return output.result_json(
            {"version": with_new_names(asdict(version)), "base": str(base), "files": [str(path) for path in written]}
        )
    output.talk(f"Version {version.number} of task {version.task} ({line(version.name)}), on the base {base}:")
    for path in written:
        output.result(str(path))
    if warning:
        output.talk(warning)
    output.talk("")
    use = next(path for path in written if path.name == USE)
    return output.done(plain(use.read_text(encoding="utf-8")).rstrip())


def register(verbs: Verbs) -> None:
    """Add the verbs."""
    family = add_family(verbs, "adapters", "list, export, name, roll back and delete trained adapters")
    add_verb(
        family,
        "list",
        list_versions,
        "list adapter versions, newest first",
        partial(add_task, about="only of this task, by number or name", optional=True),
        json=True,
    )
    add_verb(
        family,
        "export",
        run_export,
        "write an adapter as a PEFT folder",
        arg("adapter", metavar="ID|NAME", help=ADAPTER),
        arg("--out", type=Path, required=True, metavar="DIR", help="the folder to write into"),
        arg("--version", metavar="N|best|last", help="which version (default: best, else last)"),
        arg("--gguf", action="store_true", help="also write a GGUF file for llama.cpp"),
        json=True,
    )
    add_verb(
        family,
        "name",
        run_name,
        "give a version a name for clients of the API, or list the names",
        arg("name", nargs="?", metavar="NAME", help="letters, digits and ._:-; without one, names are listed"),
        arg("version", nargs="?", metavar="VERSION", help="17@12, 17@best, 17/player@newest, or a version's own name"),
        arg("--remove", action="store_true", help="take the name away; the version stays"),
        arg("--tenant", metavar="NAME", help="whose name, where several tenants have it"),
        json=True,
        epilog="Keys of the version's tenant find it under the name; other tenants may have the same name for versions"
        " of their own. A name that is given again means the new version from then on. A version with a name stays on"
        " the disk.",
    )
    add_verb(
        family,
        "rollback",
        run_rollback,
        "let a task that does not run continue from an earlier version; later steps become void",
        arg("adapter", metavar="ID|NAME", help=ADAPTER),
        arg("--version", metavar="N|best|last", help="the version to go on from"),
        json=True,
        epilog="Later versions lose their files and scores; export first what you want to keep. Other policies of the"
        " task stay where they are. The task is queued and goes on by itself. A version that was kept without its"
        " optimizer's moments begins with a new optimizer.",
    )
    add_verb(
        family,
        "delete",
        run_delete,
        "delete the adapters of a finished task; this cannot be undone",
        arg("adapter", metavar="ID|NAME", help=ADAPTER),
        arg("--version", metavar="N|best|last", help="only this version (default: all of the task)"),
        json=True,
        epilog="Scores and trajectories stay. Export first what you want to keep.",
    )
