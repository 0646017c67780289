"""What a node has, may be used of, and runs: looked at on the node itself, by the rules that hold there.

It blocks, for seconds where there are cards or something is measured. Nothing is raised: a node that cannot be looked
at says why.
"""

from __future__ import annotations

import time
from dataclasses import dataclass

from ..base import load_base
from ..devices import NOTHING, Cpu, Machine, Ours, Software, UsableResources, available_memory, survey_machine
from ..errors import MarlaasError
from ..home import Home, load_settings
from .versions import Versions, differences, own_versions


@dataclass(frozen=True)
class NodeFacts:
    """What a node says of itself."""

    versions: Versions
    usable: UsableResources = UsableResources(Machine(Cpu((), 0, 0)))  # noqa: RUF009  # it is frozen
    """By the node's own marlaas.toml, container and other accounts; with rates where they are measured."""
    software: Software = Software()  # noqa: RUF009  # that, too
    free_bytes: int = 0
    """Main memory that may still be taken there."""
    base: str = ""
    """Fingerprint of the node's own base; empty where it has none."""
    trouble: str = ""
    """Why the node cannot work, in a sentence; empty where it can."""
    clock: float = 0.0
    """The node's time when it had looked, in seconds since 1970."""


def look_here(home: Home, ours: Ours = NOTHING, *, measure: bool = False) -> NodeFacts:
    """Look at this machine for the home of a node; ``ours`` is what the engine's workers hold here already.

    ``measure`` measures devices whose speed is not known yet, some seconds for each; only where no worker runs.
    """
    versions = own_versions()
    try:
        settings = load_settings(home)
        seen = survey_machine(settings.resources, home.rates, ours, missing=measure)
    except MarlaasError as error:
        return NodeFacts(versions, trouble=error.message, clock=time.time())
    free = available_memory(settings.resources.memory)
    return NodeFacts(versions, seen.usable, seen.software, free, _base(settings.base), clock=time.time())


def _base(name: str) -> str:
    try:
        return load_base(name).fingerprint
    except MarlaasError:
        return ""  # the launcher looks for the engine's base by its fingerprint, and says where it is missing


def trouble_with(facts: NodeFacts, engine: Versions) -> str:
    """Why a node is not used beside an engine of these versions, in a sentence; empty where it is. Pure."""
    if facts.trouble:
        return facts.trouble
    if differ := differences(engine, facts.versions):
        return f"{differ} Install the same versions on both."
    if not facts.usable.machine.cpu.count:
        return "No core may be used there."
    return ""
