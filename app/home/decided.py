"""Where work would go on this machine, as findings of ``marlaas doctor``: the engine's own decision, in its own words.

A home and what was seen of the machine flow in, findings flow out. Starts nothing, and never raises.
"""

from __future__ import annotations

from collections.abc import Iterator

from marlaas.engine.devices.guest import Guest
from marlaas.engine.devices.survey import Survey
from marlaas.engine.errors import MarlaasError
from marlaas.engine.paths import Home

from ..words.format import line
from .finding import Finding

NAME = "placement"


def decided(home: Home, seen: Survey) -> Iterator[Finding]:
    """A line for each reason; nothing where the base or the settings cannot be read, which other findings say.

    Cards that are left alone have lines of their own.
    """
    from marlaas.engine.base.model import load_base
    from marlaas.engine.config import load_settings
    from marlaas.engine.devices.placement.decide import decide
    from marlaas.engine.orchestrator.worker_plan import wanted_of

    try:
        settings = load_settings(home)
        base = load_base(settings.base)
    except MarlaasError:
        return
    try:
        wanted = wanted_of(base, settings, trains=True)
        placement = decide(settings, wanted, Guest(seen.guest.machine), seen.software)
    except MarlaasError as error:
        yield Finding(NAME, "missing", line(error.message), line(error.hint or ""))
        return
    for reason in placement.reasons:
        yield Finding(NAME, "ok", line(reason))
