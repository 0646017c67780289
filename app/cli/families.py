"""Which module of this package has which verbs, so that a command line loads the one that it names and no other.

Imports none of them.
"""

from __future__ import annotations

from collections.abc import Sequence

FAMILIES: dict[str, tuple[str, ...]] = {
    "demo": ("demo",),
    "tasks.submit": ("submit",),
    "tasks.evaluate": ("eval",),
    "tasks.listing": ("list", "show"),
    "tasks.watch": ("watch",),
    "tasks.compare": ("compare",),
    "tasks.wait": ("wait",),
    "tasks.steer": ("pause", "resume", "retry", "cancel"),
    "tasks.extend": ("extend",),
    "tenants": ("tenants",),
    "results.stats": ("stats",),
    "results.metrics": ("metrics",),
    "results.matrix": ("matrix",),
    "results.rollouts": ("rollouts",),
    "results.report": ("report",),
    "logs": ("logs",),
    "env": ("env",),
    "base": ("base",),
    "adapters": ("adapters",),
    "chat": ("chat",),
    "serve": ("serve",),
    "api": ("api",),
    "engine": ("engine",),
    "cluster": ("cluster",),
    "home": ("home",),
    "simulate": ("simulate",),
    "explain": ("explain",),
    "keys": ("keys",),
    "doctor": ("doctor",),
    "clean": ("clean",),
    "completion": ("completion",),
}
"""Modules in the order of the help, with the verbs that they register."""
WITH_A_VALUE = ("--home", "--theme")
WITHOUT = ("--plain", "--readonly", "--ascii", "--web", "--version")
"""Options that may stand before a verb."""


def needed(words: Sequence[str]) -> tuple[str, ...]:
    """The modules that a command line needs: its verb's, none for the application, all where that cannot be told."""
    left = iter(words)
    for word in left:
        if word in WITH_A_VALUE:
            next(left, "")
        elif not word.startswith("-"):
            return tuple(module for module, verbs in FAMILIES.items() if word in verbs) or tuple(FAMILIES)
        elif word.partition("=")[0] not in (*WITH_A_VALUE, *WITHOUT):
            return tuple(FAMILIES)  # --help, an abbreviation, or a mistake
    return ()
