"""``env list``: the environments that the engine serves, and why one does not serve."""

from __future__ import annotations

import argparse
from dataclasses import asdict
from typing import TYPE_CHECKING

from .. import output
from ..format import line
from .verbs import Verbs, add_family, add_verb, home_of

if TYPE_CHECKING:
    from marlaas.engine.store.rows import EnvironmentRow


def register(verbs: Verbs) -> None:
    """Add the family."""
    family = add_family(verbs, "env", "see the environments")
    add_verb(family, "list", run, "list environments, their parameters and errors", json=True)


def run(args: argparse.Namespace) -> int:
    """Print the environments as the engine last saw them."""
    from .reading import reading

    home = home_of(args)
    with reading(home) as reader:
        environments = reader.environments() if reader else []
    if args.json:
        output.result_json([asdict(environment) for environment in environments])
        return output.OK
    if not environments:
        output.talk("No engine has looked for environments yet; `marlaas engine start` starts one.")
        return output.OK
    output.result_table(
        ("NAME", "STATE", "VERSION", "PARAMETERS", "DESCRIPTION"),
        [(e.name, e.state, e.version[:8], _parameters(e), line(e.description or "", 60)) for e in environments],
    )
    for environment in environments:
        if environment.message:
            place = f" ({environment.file}:{environment.line})" if environment.file else ""
            output.talk(line(f"{environment.name}: {environment.message}{place}"))
    output.talk(f"Files dropped into {home.plugins} are served at once.")
    return output.OK


def _parameters(environment: EnvironmentRow) -> str:
    return " ".join(
        f"{p.get('name')}" if p.get("required") else f"{p.get('name')}={p.get('default')}"
        for p in environment.parameters
    )
