"""A survey of the machine: what there is, what of it may be used, which libraries can use it, and how fast it is.

It blocks, for seconds where there are cards. Only devices that may be used are measured, because a measurement takes
memory of a card.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from pathlib import Path

from .calibration import with_rates
from .cards.holders import own_account
from .inventory import also, probe
from .libraries.software import usable_software
from .machine import Inventory, Software
from .ours import NOTHING, Ours, claimed
from .resources import ResourceSettings
from .usable import UsableResources, usable_resources


@dataclass(frozen=True)
class Survey:
    """All that is known of the machine."""

    found: Inventory
    usable: UsableResources
    software: Software
    account: str
    """The account of this process."""
    notes: tuple[str, ...] = ()
    """Why rates that were to be measured are missing, in one sentence each."""


def survey_machine(
    resources: ResourceSettings,
    rates: Path,
    ours: Ours = NOTHING,
    *,
    missing: bool = False,
    anew: bool = False,
) -> Survey:
    """Survey the machine; ``ours`` is what this engine holds, ``missing`` and ``anew`` are as in ``with_rates``."""
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
