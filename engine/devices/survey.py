"""A survey of the machine: what there is, what of it may be used and why, what marlaas itself holds."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from .calibration import with_rates
from .cards.cuda_order import cuda_order
from .cards.nvml import NO_DRIVER, has_driver, own_account, read_apple, read_cards
from .cards.visible import ORDER, VARIABLE, ambiguous
from .machine import Gpu, Inventory, Machine, Software
from .processor import read_processor
from .software import usable_software
from .usable import NOTHING, Ours, ResourceSettings, UsableResources, claimed, usable_resources

# The inventory is taken in a child process, because a driver may hang or crash. As a program, ``python -P -m
# marlaas.engine.devices.survey PID,PID…`` writes a pickled ``Inventory`` to its standard output.

SECONDS = 30.0
"""Seconds for the child process. An unloaded driver takes some seconds to load for each card."""


def probe(ours: Collection[int] = (), seconds: float = SECONDS) -> Inventory:
    """Take the inventory in a child process and wait for it; ``ours`` are the ids of this engine's processes.

    Without a driver that could hang, this process does it itself.
    """
    if not has_driver():
        processor = read_processor()
        return Inventory(Machine(processor, read_apple(processor.memory)), reason=NO_DRIVER)
    command = [sys.executable, "-P", "-m", "marlaas.engine.devices.survey", ",".join(map(str, ours))]
    try:
        child = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    except OSError as error:
        return _nothing(f"cards cannot be looked for: {error}")
    with child:
        try:
            out, said = child.communicate(timeout=seconds)
        except subprocess.TimeoutExpired:
            child.kill()
            return _nothing(f"the driver of the cards gave no answer within {seconds:g} s")
    try:
        found = pickle.loads(out)
    except Exception:  # an incomplete pickle may raise anything
        last = said.decode("utf-8", "replace").strip().splitlines()[-1:] or [f"status {child.returncode}"]
        return _nothing(f"looking for cards failed: {last[0]}")
    return found if isinstance(found, Inventory) else _nothing("looking for cards failed")


def look(ours: Collection[int] = ()) -> Inventory:
    """Take the inventory in this process; ``ours`` as in ``probe``."""
    processor, cards = read_processor(), read_cards(ours)
    gpus = cards.gpus or read_apple(processor.memory)
    order = cuda_order() if ambiguous(os.environ.get(VARIABLE), os.environ.get(ORDER), cards.gpus) else None
    return Inventory(Machine(processor, gpus), cards.driver, cards.cuda, cards.reason, cards.notes, order)


def also(found: Inventory, cards: Sequence[Gpu]) -> Inventory:
    """The inventory with ``cards`` from llama.cpp's own list, if NVML shows none."""
    machine = found.machine
    return found if machine.gpus else replace(found, machine=replace(machine, gpus=tuple(cards)))


def _nothing(reason: str) -> Inventory:
    return Inventory(Machine(read_processor()), reason=reason)


def main() -> None:
    """Take the inventory and write it to the standard output."""
    out = os.dup(1)
    os.dup2(2, 1)
    ours = frozenset(int(word) for word in sys.argv[1].split(",") if word) if len(sys.argv) > 1 else frozenset()
    with os.fdopen(out, "wb") as stream:
        pickle.dump(look(ours), stream)


if __name__ == "__main__":
    main()


@dataclass(frozen=True)
class Survey:
    """All known facts of the machine."""

    found: Inventory
    usable: UsableResources
    software: Software
    account: str
    notes: tuple[str, ...] = ()


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
