"""Finds the environment that a person means: "arithmetic", or "plugin/environment" where that is ambiguous."""

from __future__ import annotations

from collections.abc import Sequence
from difflib import get_close_matches

from ..errors import EnvironmentMissing
from .protocol import EnvironmentInfo


def find(name: str, infos: Sequence[EnvironmentInfo]) -> EnvironmentInfo:
    """The environment of that name; ``EnvironmentMissing`` names those that exist, and the nearest."""
    for info in infos:
        if info.name == name:
            return info
    matches = [info for info in infos if info.name.rpartition("/")[2] == name]
    matches = [info for info in matches if info.version] or matches  # what serves goes before what may come
    if len(matches) == 1:
        return matches[0]
    if matches:
        names = " and ".join(info.name for info in matches)
        raise EnvironmentMissing(f"{name!r} is ambiguous: there are {names}.", "Say which one by its full name.")
    plugin = name.partition("/")[0]
    for info in infos:  # which environments a plugin has is not known for sure before it has served
        if not info.version and info.name.partition("/")[0] == plugin:
            return info
    raise EnvironmentMissing(f"There is no environment {name!r}.", _advice(name, infos))


def _advice(name: str, infos: Sequence[EnvironmentInfo]) -> str:
    served = sorted(info.name for info in infos if info.version)
    if not served:
        return "No environment is served yet."
    by_short = {full.rpartition("/")[2]: full for full in served}
    nearest = get_close_matches(name, [*served, *by_short], n=1, cutoff=0.5)
    guess = f"Did you mean {by_short.get(nearest[0], nearest[0])!r}? " if nearest else ""
    return f"{guess}There are: {', '.join(served)}."
