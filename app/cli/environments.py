"""The family ``env``, and ``env list``: the environments that the engine serves, and why one does not serve."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING

from .. import output
from ..format import line
from . import env_allow, env_check, env_new, env_play, env_prompts, env_reload, env_replay, env_show
from .env_rows import place_of, short
from .env_show import unwatched
from .verbs import Verbs, add_family, add_verb, home_of

if TYPE_CHECKING:
    from marlaas.engine.store.rows import EnvironmentRow

_MEMBERS = (env_new, env_prompts, env_check, env_play, env_allow, env_show, env_reload, env_replay)


def register(verbs: Verbs) -> None:
    """Add the family."""
    family = add_family(verbs, "env", "write, try, see and reload environments")
    listing = add_verb(family, "list", run, "list environments, their parameters and errors", json=True)
    listing.add_argument("name", metavar="NAME", nargs="?", help="only those with this in their name")
    for member in _MEMBERS:
        member.register(family)


def run(args: argparse.Namespace) -> int:
    """Print the environments as the engine last saw them."""
    from ..findings import mark, spoken, troubles
    from .reading import reading

    home = home_of(args)
    with reading(home) as reader:
        environments = reader.environments() if reader else []
    known, asleep = bool(environments), unwatched(home)
    if known and asleep:
        output.talk(asleep)
    if args.name is not None:
        environments = _filtered(environments, args.name)
    if args.json:
        output.result_json([asdict(environment) for environment in environments])
        return output.OK
    if not known:
        output.talk("No engine has looked for environments yet; `marlaas engine start` starts one.")
        return output.OK
    output.result_table(
        ("NAME", "STATE", "VERSION", "CHECKED", "PARAMETERS", "DESCRIPTION"),
        [
            (e.name, e.state, e.version[:8], mark(e), _parameters(e), line(e.description.partition("\n")[0], 60))
            for e in environments
        ],
    )
    for environment in environments:
        if environment.message:
            output.talk(line(f"{environment.name}: {environment.message}{place_of(environment)}"))
        for finding in troubles(environment.findings):
            output.talk(f"{line(environment.name)}: {spoken(finding)}")
    if not asleep:
        output.talk(f"Files dropped into {home.plugins} are served at once.")
    return output.OK


def _filtered(environments: Sequence[EnvironmentRow], name: str) -> list[EnvironmentRow]:
    """Those with ``name`` in their names; where there are none, the sentence with the nearest (``named`` raises it)."""
    from .env_rows import named

    kept = [environment for environment in environments if name.lower() in environment.name.lower()]
    return kept or (named(name, environments) if environments else [])


def _parameters(environment: EnvironmentRow) -> str:
    return " ".join(line(short(parameter), 60) for parameter in environment.parameters)
