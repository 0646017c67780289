"""Check: the agents that speak are those that the environment declares.

A task says which policy acts as which agent; at its submission that is checked against the declared agents.
"""

from __future__ import annotations

from collections.abc import Sequence

from .finding import Finding
from .plays import Played

CHECK = "agents"
ENOUGH = 16
"""Episodes from which an agent that was never asked is worth a warning."""
_MOST_NAMED = 8


def judge(played: Sequence[Played], declared: Sequence[str]) -> list[Finding]:
    """A warning for agents that never speak; a note of several that speak. An undeclared one fails its episode."""
    asked = frozenset[str]().union(*(one.agents for one in played))
    if not declared:
        if len(asked) < 2:
            return []
        names = ", ".join(f'"{name}"' for name in sorted(asked)[:_MOST_NAMED])
        text = (
            f"{len(asked)} agents speak, and none is declared. With @env(agents=({names})) a task that leaves one out"
        )
        return [Finding(CHECK, "note", f"{text} is refused when it is submitted.")]
    silent = [name for name in declared if name not in asked]
    if silent and len(played) >= ENOUGH:
        text = f"{_listed(silent)}: declared and never asked in {len(played)} episodes with odd replies;"
        text += (
            " a policy for it would learn nothing. Remove it from @env(agents=…), unless only good replies lead to it."
        )
        return [Finding(CHECK, "warning", text)]
    if silent:
        return []
    return [Finding(CHECK, "note", f"All {len(declared)} agents that it declares were asked: {_listed(declared)}.")]


def _listed(names: Sequence[str]) -> str:
    """The first few names, and how many others there are."""
    if len(names) <= _MOST_NAMED:
        return ", ".join(names)
    return f"{', '.join(names[:_MOST_NAMED])} and {len(names) - _MOST_NAMED} others"
