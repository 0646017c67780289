"""All that is known of the machine, put together: what there is, what of it may be taken, what can use it, how fast.

Settings and the file of rates flow in, a ``Survey`` flows out. It blocks, for seconds where there are cards. Only what
may be taken is measured: a measurement takes memory of a card.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from pathlib import Path

from .calibration import with_rates
from .holders import own_account
from .inventory import also, probe
from .machine import Inventory, Software
from .ours import NOTHING, Ours, claimed
from .resources import ResourceSettings
from .software import usable_software
from .usable import UsableResources, usable_resources


@dataclass(frozen=True)
class Survey:
    """A machine."""

    found: Inventory
    usable: UsableResources
    software: Software
    account: str
    """Whose process looked."""
    notes: tuple[str, ...] = ()
    """Why rates are missing that were to be measured, in one sentence each."""


def survey_machine(
    resources: ResourceSettings,
    rates: Path,
    ours: Ours = NOTHING,
    *,
    missing: bool = False,
    anew: bool = False,
) -> Survey:
    """Look; ``ours`` is what this engine holds already. ``missing`` and ``anew`` measure, as ``with_rates`` does."""
    found, account = claimed(probe(ours.processes), ours), own_account()
    usable = usable_resources(found, resources, os.environ, account)
    installed = usable_software(usable.machine.gpus)
    if installed.cards:
        found = also(found, installed.cards)
        usable = usable_resources(found, resources, os.environ, account)
    notes: tuple[str, ...] = ()
    if missing or anew:
        notes = with_rates(replace(found, machine=usable.machine), rates, missing=missing, anew=anew).notes
    found = with_rates(found, rates).found
    return Survey(found, usable_resources(found, resources, os.environ, account), installed, account, notes)
