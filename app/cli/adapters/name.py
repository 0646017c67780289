"""``adapters name``: names of a tenant's own for versions, under which clients of the API find them."""

from __future__ import annotations

import argparse
from dataclasses import asdict
from typing import TYPE_CHECKING

from ... import output
from ...home.commands import unanswered, wait_for_outcomes
from ...words.format import line
from ..verbs import Verbs, add_verb, home_of

if TYPE_CHECKING:
    from marlaas.engine.store import GivenName, VersionRow

    from ...reading.home_reader import HomeReader


def register(family: Verbs) -> None:
    """Add the verb."""
    name = add_verb(
        family,
        "name",
        run,
        "give a version a name for clients of the API, or list the names",
        json=True,
        epilog="Keys of the version's tenant find it under the name; other tenants may have the same name for versions"
        " of their own. A name that is given again means the new version from then on. A version with a name stays on"
        " the disk.",
    )
    name.add_argument("name", nargs="?", metavar="NAME", help="letters, digits and ._:-; without one, names are listed")
    version = "17@12, 17@best, 17/player@newest, or a version's own name"
    name.add_argument("version", nargs="?", metavar="VERSION", help=version)
    name.add_argument("--remove", action="store_true", help="take the name away; the version stays")
    name.add_argument("--tenant", metavar="NAME", help="whose name, where several tenants have it")


def run(args: argparse.Namespace) -> int:
    """List the names, or have the engine give or remove one."""
    from marlaas.engine.errors import AdapterError, ConfigError
    from marlaas.engine.spec import served_name
    from marlaas.engine.submission import choose_at

    from ...home.references import arguments, reference
    from ...reading.opening import reading

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
        output.result_json([asdict(one) for one in known])
        return output.OK
    if not known:
        output.talk("No version has a name yet: `marlaas adapters name NAME VERSION` gives one.")
        return output.OK
    rows = [
        (line(one.tenant, 24), one.name, str(one.task), line(one.version), "" if one.kept else "gone") for one in known
    ]
    output.result_table(("TENANT", "NAME", "TASK", "VERSION", ""), rows, right=("TASK",))
    return output.OK


def _found(known: list[GivenName], name: str, tenant: str | None) -> GivenName:
    from marlaas.engine.errors import ConfigError
    from marlaas.engine.spec import nearest

    found = [one for one in known if one.name == name and tenant in (None, one.tenant)]
    if not found:
        names = [one.name for one in known if tenant in (None, one.tenant)]
        raise ConfigError(f"No version has the name {name!r}.", nearest(name, names))
    if len(found) > 1:
        owners = ", ".join(one.tenant for one in found)
        raise ConfigError(f"Several tenants have the name {name!r}: {owners}.", "Give one with --tenant.")
    return found[0]


def _given(version: VersionRow, name: str) -> GivenName:
    from marlaas.engine.store import GivenName

    return GivenName(version.tenant, name, version.task, version.policy, version.number, version.name, True)


def _send(
    args: argparse.Namespace, reader: HomeReader, kind: str, task: int | None, about: GivenName, **arguments: object
) -> int:
    """Start the engine if need be, which alone writes names, and report what it answered."""
    from marlaas.engine.daemon import control
    from marlaas.engine.store import command

    home = home_of(args)
    control.ensure_running(home, notice=output.talk)
    sent = command(home.database, kind, task, **arguments)
    outcome = wait_for_outcomes(reader, [sent]).get(sent)
    if outcome is None:
        raise unanswered()
    if outcome:
        output.complain(outcome)
        return output.USAGE
    if args.json:
        output.result_json(asdict(about) | {"removed": kind == "unname"})
    elif kind == "unname":
        output.talk(f"The name {about.name} of tenant {line(about.tenant)} is removed.")
    else:
        output.talk(f"Clients of tenant {line(about.tenant)} find {line(about.version)} as {about.name}.")
    return output.OK
