"""The family ``env``, and ``env list``: the environments that the engine serves, and why one does not serve."""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING

from ... import output
from ...words.format import line
from ..verbs import Verbs, add_family, add_verb, home_of
from . import allow, check, new, play, prompts, reload, replay, show
from .show import unwatched

if TYPE_CHECKING:
    from marlaas.engine.store import EnvironmentRow, EnvironmentUse

_MEMBERS = (new, prompts, check, play, allow, show, reload, replay)
_LATELY = ("EPISODES", "FAILED", "MEDIAN", "P95")


def register(verbs: Verbs) -> None:
    """Add the family."""
    family = add_family(verbs, "env", "write, try, see and reload environments")
    listing = add_verb(family, "list", run, "list environments, their parameters and errors", json=True)
    listing.add_argument("name", metavar="NAME", nargs="?", help="only those with this in their name")
    for member in _MEMBERS:
        member.register(family)


def run(args: argparse.Namespace) -> int:
    """Print the environments as the engine last saw them."""
    from marlaas.engine.store import EnvironmentUse

    from ...reading.opening import reading
    from ...words.environments.facts import lately_json, place_of, spoken, troubles

    home = home_of(args)
    with reading(home) as reader:
        environments = reader.environments() if reader else []
        uses = reader.environment_use(time.time()) if reader else {}
    known, asleep = bool(environments), unwatched(home)
    if known and asleep:
        output.talk(asleep)
    if args.name is not None:
        environments = _filtered(environments, args.name)
    if args.json:
        output.result_json(
            [asdict(e) | {"last_hour": lately_json(uses.get(e.name, EnvironmentUse()))} for e in environments]
        )
        return output.OK
    if not known:
        output.talk("No engine has looked for environments yet; `marlaas engine start` starts one.")
        return output.OK
    output.result_table(
        ("NAME", "STATE", "VERSION", "PROCESSES", "CHECKED", *_LATELY, "PARAMETERS", "DESCRIPTION"),
        [_columns(e, uses.get(e.name)) for e in environments],
    )
    for environment in environments:
        if environment.message:
            output.talk(line(f"{environment.name}: {environment.message}{place_of(environment)}"))
        for finding in troubles(environment.findings):
            output.talk(f"{line(environment.name)}: {spoken(finding)}")
    if uses:
        output.talk("Episodes, failures and times are those of the last hour.")
    if not asleep:
        output.talk(f"Files dropped into {home.plugins} are served at once.")
    return output.OK


def _filtered(environments: Sequence[EnvironmentRow], name: str) -> list[EnvironmentRow]:
    """Those with ``name`` in their names; where there are none, ``named`` raises its error with the nearest name."""
    from ...words.environments.facts import named

    kept = [environment for environment in environments if name.lower() in environment.name.lower()]
    return kept or (named(name, environments) if environments else [])


def _lately(use: EnvironmentUse | None) -> tuple[str, ...]:
    """What came of the last hour's episodes; empty where none has ended."""
    from ...words.environments.facts import failed_share, takes

    if use is None:
        return ("",) * len(_LATELY)
    times = (takes(use.median), takes(use.slow)) if use.statuses.get("ok") else ("", "")
    return (f"{use.episodes:,}", failed_share(use), *times)


def _columns(e: EnvironmentRow, use: EnvironmentUse | None) -> tuple[str, ...]:
    from ...words.environments.facts import mark

    before = (e.name, e.state, e.version[:8], _processes(e), mark(e))
    return (*before, *_lately(use), _parameters(e), _first(e.description))


def _processes(environment: EnvironmentRow) -> str:
    """How many processes its plugin has, and how many episodes wait for a place in one."""
    shown = str(environment.playing + environment.scoring or "")
    return f"{shown} ({environment.waiting:,} wait)" if environment.waiting else shown


def _first(text: str) -> str:
    return line(text.partition("\n")[0], 60)


def _parameters(environment: EnvironmentRow) -> str:
    from ...words.environments.facts import short

    return " ".join(line(short(parameter), 60) for parameter in environment.parameters)
