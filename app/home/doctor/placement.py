"""Where workers would run on this machine: the engine's own decision, in its own words.

For ``marlaas doctor``, and for estimates. Starts nothing, and never raises.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from marlaas.engine.devices import Survey, UsableResources
from marlaas.engine.errors import MarlaasError
from marlaas.engine.home import Home

from ...words.format import line
from .finding import Finding

if TYPE_CHECKING:
    from marlaas.engine.base import BaseModel
    from marlaas.engine.home import Settings

NAME = "placement"


def decided(home: Home, seen: Survey) -> Iterator[Finding]:
    """A line for each reason; nothing where the base or the settings cannot be read, which other findings say.

    Cards that are left alone have lines of their own.
    """
    from marlaas.engine.base import load_base
    from marlaas.engine.fleet import placed
    from marlaas.engine.home import load_settings

    try:
        settings = load_settings(home)
        base = load_base(settings.base)
    except MarlaasError:
        return
    try:
        placement = placed(base, settings, UsableResources(seen.usable.machine), seen.software)
    except MarlaasError as error:
        yield Finding(NAME, "missing", line(error.message), line(error.hint or ""))
        return
    for reason in placement.reasons:
        yield Finding(NAME, "ok", line(reason))


def cards_used(base: BaseModel, settings: Settings, seen: Survey) -> str:
    """The cards that an engine would compute on, ``gpu 0 and gpu 1``; empty where it takes none."""
    from marlaas.engine.fleet import cards, placed

    try:
        placement = placed(base, settings, seen.usable, seen.software)
    except MarlaasError:  # the engine reports it when it starts
        return ""
    used = [gpu for gpu in seen.usable.machine.gpus if gpu.uuid in placement.cards]
    return cards(used) if used else ""
