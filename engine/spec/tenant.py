"""The weight and the quotas of a tenant, and the check of a command that sets them.

The command line checks before it sends the command; the engine checks what it receives.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ..errors import ConfigError


@dataclass(frozen=True)
class Limit:
    """A number that a person may set for a tenant."""

    words: str
    low: float
    high: float
    whole: bool = True


LIMITS = {
    "weight": Limit("weight", 0.001, 1000, whole=False),
    "tasks": Limit("number of tasks at the same time", 0, 10_000),
    "tokens_per_day": Limit("number of tokens a day", 0, 10**15),
}
"""By the name of the command's argument; a quota of 0 means none."""


def tenant_name(name: object) -> str:
    """A tenant's name, checked. Raises ``ConfigError``."""
    if not isinstance(name, str) or not name.strip() or len(name) > 200 or not name.isprintable():
        raise ConfigError("A tenant's name must be a printable text of 1 to 200 characters.")
    return name


def tenant_change(arguments: Mapping[str, Any]) -> tuple[str, dict[str, float]]:
    """The tenant's name and its new limits, by column. Raises ``ConfigError``."""
    changes = dict(arguments)
    name = tenant_name(changes.pop("name", ""))
    for key, value in changes.items():
        if key not in LIMITS:
            raise ConfigError(f"This engine knows no {key!r} of a tenant.", "Restart it if marlaas was updated.")
        limit = LIMITS[key]
        is_number = isinstance(value, int if limit.whole else (int, float)) and not isinstance(value, bool)
        if not is_number or not limit.low <= value <= limit.high:
            kind = "a whole number" if limit.whole else "a number"
            raise ConfigError(
                f"The {limit.words} of tenant {name!r} cannot be {value}; it is {kind} from {limit.low:g} to"
                f" {limit.high:,}."
            )
    if not changes:
        raise ConfigError(f"Nothing is to change for tenant {name!r}.", "Give --weight, --tasks or --tokens-per-day.")
    return name, changes
