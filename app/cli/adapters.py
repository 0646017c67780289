"""``adapters``: list, export, push, pull, name, roll back and delete versions."""

from __future__ import annotations

import argparse
import time
from dataclasses import asdict
from functools import partial
from pathlib import Path

from marlaas.engine.adapters.use import USE
from marlaas.engine.daemon import control
from marlaas.engine.errors import AdapterError, ConfigError
from marlaas.engine.home.paths import Home
from marlaas.engine.home.settings import load_settings
from marlaas.engine.models.find import ON_HUB, download_adapter, load_base
from marlaas.engine.queue.submission.references import choose, choose_at, named_by
from marlaas.engine.spec.task import served_name
from marlaas.engine.spec.validation import nearest
from marlaas.engine.store.queries import learning
from marlaas.engine.store.queries.learning import GivenName

from .. import output
from ..lists.lines import learner, learners
from ..operations.commands import arguments, ask, owner, reference
from ..operations.results import no_gain
from ..reading import find_task, reading
from ..text.format import ago, counted, line, plain, size
from ..text.scores import with_error
from ..text.terms import with_new_names
from .parser import ADAPTER, Verbs, adapter_of, add_family, add_task, add_verb, arg


def list_versions(home: Home, args: argparse.Namespace) -> int:
    """Print the versions on disk with sizes."""
    from marlaas.engine.home.disk import home_size

    with reading(home) as reader:
        task = find_task(reader, args.task).id if args.task is not None else None
        versions = reader.versions(task, kept=True) if reader else []
    if args.json:
        return output.result_json([with_new_names(asdict(version)) for version in versions])
    if not versions:
        return output.done("No adapters yet; a task's first version appears when it starts.")
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
                ago(v.created, time.time()),
            )
            for v in versions
        ],
        right=("TASK", "VERSION", "HELD-OUT", "SIZE"),
    )
    taken = home_size(home)
    return output.done(
        f"{counted(len(versions), 'version')}, {size(sum(version.size for version in versions))}. The home takes"
        f" {size(taken.total)} of the disk: adapters {size(taken.adapters)}, database {size(taken.database)}, bases for"
        f" llama.cpp {size(taken.base)}, other {size(taken.other)}."
    )


def run_export(home: Home, args: argparse.Namespace) -> int:
    """Export one version."""
    from ..report.export import export

    with reading(home) as reader:
        version = choose(reader.versions() if reader else [], *adapter_of(args))
        warning = no_gain(reader, version) if reader else ""
    base = load_base(load_settings(home).base).path.resolve()
    written = export(home, version, args.out, args.gguf, args.merge)
    if args.json:
        return output.result_json(
            {"version": with_new_names(asdict(version)), "base": str(base), "files": [str(path) for path in written]}
        )
    output.talk(f"Version {version.number} of task {version.task} ({line(version.name)}), on the base {base}:")
    for path in written:
        output.result(str(path))
    use = next(path for path in written if path.name == USE)
    return output.done("\n".join([*filter(None, [warning]), "", plain(use.read_text(encoding="utf-8")).rstrip()]))


def run_push(home: Home, args: argparse.Namespace) -> int:
    """Export one version, and commit it to the Hugging Face hub."""
    from ..report.export import push

    with reading(home) as reader:
        version = choose(reader.versions() if reader else [], *adapter_of(args))
        warning = no_gain(reader, version) if reader else ""
    output.talk(f"Pushing version {version.number} of task {version.task} ({line(version.name)}) …")
    address = push(home, version, args.repository, args.private, args.merge, args.gguf)
    if args.json:
        return output.result_json({"version": with_new_names(asdict(version)), "commit": address})
    output.result(line(address))
    return output.done(warning) if warning else output.OK


def run_pull(home: Home, args: argparse.Namespace) -> int:
    """Fetch an adapter from the Hugging Face hub, and check it against the home's base."""
    from marlaas.engine.adapters.peft_folder import read_adapter  # loads numpy

    base = load_base(control.served_base(home).name)
    folder = download_adapter(args.name)
    header = read_adapter(folder, base).header
    if args.json:
        return output.result_json({"folder": str(folder), "rank": header.rank, "alpha": header.alpha})
    output.result(str(folder))
    return output.done(f'It fits the base, and has rank {header.rank}. `start = "{ON_HUB}{args.name}"` begins from it.')


def run_name(home: Home, args: argparse.Namespace) -> int:
    """List a tenant's names for versions, or have the engine set or remove one."""
    if args.name is not None and args.remove == (args.version is not None):
        raise ConfigError("A name is given to a version, or removed.", "Write NAME VERSION, or NAME --remove.")
    with reading(home) as reader:
        known = learning.given_names(reader) if reader else []
        versions = reader.versions() if reader else []
    if args.name is None:
        return output.show(
            known,
            args.json,
            ("TENANT", "NAME", "TASK", "VERSION", ""),
            lambda one: (
                *(line(one.tenant, 24), one.name, str(one.task), line(one.version)),
                "" if one.kept else "gone",
            ),
            ("TASK",),
            "No version has a name yet: `marlaas adapters name NAME VERSION` gives one.",
        )
    if args.remove:
        about = _named(known, args.name, args.tenant)
        ask(home, "unname", tenant=about.tenant, name=about.name)
        said = f"The name {about.name} of tenant {line(about.tenant)} is removed."
    else:
        version = choose_at(versions, args.version)
        name = served_name(args.name)
        about = GivenName(version.tenant, name, version.task, version.policy, version.number, version.name, True)
        if args.tenant not in (None, version.tenant):
            raise ConfigError(f"{reference(version)} is of tenant {version.tenant!r}.", "Leave --tenant out.")
        for before in known:
            if (before.tenant, before.name) == (about.tenant, name) and before.version != about.version:
                output.talk(f"{name} meant {line(before.version)} before.")
        ask(home, "name", version.task, name=name, **arguments(version))
        said = f"Clients of tenant {line(about.tenant)} find {line(about.version)} as {name}."
    return output.result_json(asdict(about) | {"removed": args.remove}) if args.json else output.done(said)


def _named(known: list[GivenName], name: str, tenant: str | None) -> GivenName:
    theirs = [one for one in known if tenant in (None, one.tenant)]
    matches = [one for one in theirs if one.name == name]
    if not matches:
        raise ConfigError(f"No version has the name {name!r}.", nearest(name, [one.name for one in theirs]))
    if len(matches) > 1:
        owners = ", ".join(one.tenant for one in matches)
        raise ConfigError(f"Several tenants have the name {name!r}: {owners}.", "Give one with --tenant.")
    return matches[0]


# Only the engine writes versions.


def run_delete(home: Home, args: argparse.Namespace) -> int:
    """Have the engine delete versions; report names and bytes."""
    with reading(home) as reader:
        versions = reader.versions() if reader else []
    adapter, which = adapter_of(args)
    single = which is not None or any(version.name == adapter for version in versions)
    named = [choose(versions, adapter, which)] if single else named_by(versions, adapter)
    doomed = [version for version in named if version.state == "committed"]
    if not doomed:
        raise AdapterError(f"Adapter {args.adapter!r} has no version on disk.", "There is nothing to delete.")
    what = arguments(doomed[0])
    if not single:
        what.pop("version")
    if len({version.policy for version in doomed}) > 1:
        what.pop("policy")
    number = doomed[0].task
    ask(home, "delete", number, **what)
    total = sum(version.size for version in doomed)
    if args.json:
        return output.result_json({"task": number, "deleted": [version.name for version in doomed], "bytes": total})
    for version in doomed:
        output.result(f"{line(version.name)}: {size(version.size)}")
    return output.done(f"Deleted {counted(len(doomed), 'version')} of task {number}: {size(total)}.")


def run_rollback(home: Home, args: argparse.Namespace) -> int:
    """Have the engine roll a task back; report the step."""
    adapter, which = adapter_of(args)
    if which is None:
        raise ConfigError("No version is given to go on from.", f"Write {adapter}@12, or --version 12.")
    with reading(home) as reader:
        version = choose(reader.versions() if reader else [], adapter, which)
        before = find_task(reader, version.task)
    ask(home, "rollback", version.task, **arguments(version))
    void = max(0, learners(before)[learner(before, version.policy)].step - version.number)
    if args.json:
        return output.result_json({"task": version.task, "version": version.name, "step": version.number, "void": void})
    steps = f"{void} later step{' is' if void == 1 else 's are'} void"
    return output.done(f"Task {owner(version)} goes on from version {version.number} ({line(version.name)}); {steps}.")


def register(verbs: Verbs) -> None:
    """Add the verbs."""
    family = add_family(verbs, "adapters", "list, export, push, pull, name, roll back and delete trained adapters")
    exported = (
        arg("adapter", metavar="ID|NAME", help=ADAPTER),
        arg("--version", metavar="N|best|last", help="which version (default: best, else last)"),
        arg("--merge", action="store_true", help="a whole model: the base with the adapter added to its weights"),
        arg("--gguf", action="store_true", help="also a GGUF file for llama.cpp and Ollama"),
    )
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
        "write an adapter as a PEFT folder, or merged into its base, with a model card",
        *exported,
        arg("--out", type=Path, required=True, metavar="DIR", help="the folder to write into"),
        json=True,
    )
    add_verb(
        family,
        "push",
        run_push,
        "export an adapter into a repository on the Hugging Face hub",
        *exported,
        arg("repository", metavar="REPO", help="org/name; a missing one is made, another gets a commit"),
        arg("--private", action="store_true", help="make the repository private"),
        json=True,
        epilog="The token is HF_TOKEN, or that of `hf auth login`. The model card shows the task file, scores and"
        " rewards. USE.md and the Modelfile stay here, for they have paths of this machine.",
    )
    add_verb(
        family,
        "pull",
        run_pull,
        "fetch an adapter from the Hugging Face hub, for `start` in a task file",
        arg("name", metavar="REPO", help="org/name, or org/name@REVISION"),
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
