"""``--config NAME=VALUE``: an environment's parameters as they are typed on a command line.

The environment's parameters say which type a text becomes. A text that cannot be read as its type stays a text:
``EnvironmentService.validate`` then refuses it in the environment's own words.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NoReturn

if TYPE_CHECKING:
    from marlaas.plugins.parameters import Parameter

WORDS = {"true": True, "false": False}


def add_config(parser: argparse.ArgumentParser) -> None:
    """Add the option."""
    parser.add_argument(
        "--config",
        action="extend",
        nargs="+",
        default=[],
        metavar="NAME=VALUE",
        help='parameters of the environment, as in digits=3 verbose=true \'words=["ink", "pen"]\'',
    )


def typed(pairs: Sequence[str], parameters: Sequence[Parameter]) -> dict[str, Any]:
    """Values by name, the last for each. Raises ``ConfigError`` for what is no pair, and for broken JSON."""
    from marlaas.engine.errors import ConfigError

    kinds = {parameter.name: parameter.type for parameter in parameters}
    values = {}
    for pair in pairs:
        name, equals, text = pair.partition("=")
        if not name or not equals:
            raise ConfigError(f"--config {pair!r} is no NAME=VALUE.", "Write, for example, --config digits=3.")
        try:
            values[name] = value_of(text, kinds.get(name, "str"))
        except ValueError as error:
            raise ConfigError(
                f"The parameter {name!r} is a list or a table in JSON, and {text!r} is not: {error}.",
                'Write, for example, [1, 2], {"ink": 3} or "a text".',
            ) from error
    return values


def value_of(text: str, kind: str) -> Any:
    """``text`` as a parameter of that kind, or as it is. Raises ``ValueError`` where a ``json`` one is no JSON."""
    match kind:
        case "int" | "float":
            try:
                return int(text) if kind == "int" else float(text)
            except ValueError:
                return text
        case "bool":
            return WORDS.get(text.lower(), text)
        case "json":
            return json.loads(text, parse_constant=_refuse)
    return text


def _refuse(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is no JSON")
