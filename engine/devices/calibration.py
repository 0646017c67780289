"""The rates of each device, measured once and kept in the home, by device, driver and torch.

Each measurement runs in a child process: if it fails or hangs, the device has no rates, and a sentence gives the
reason.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields, replace
from importlib.metadata import PackageNotFoundError, version
from math import isfinite
from pathlib import Path

from ..tables import add_to_table, read_table
from .cards.visible import environment
from .machine import Cpu, Gpu, Inventory, Machine, Rates
from .memory import address_space

SECONDS = 60.0
MEASURED = ("cuda", "metal")


@dataclass(frozen=True)
class Calibrated:
    """A machine with its known rates."""

    found: Inventory
    notes: tuple[str, ...] = ()


def with_rates(found: Inventory, path: Path, *, missing: bool = False, anew: bool = False) -> Calibrated:
    """Add the rates from the file ``path``; with ``missing`` measure the others and add them to the file.

    ``anew`` measures all devices. A measurement takes some seconds.
    """
    known = _read(path)
    notes: list[str] = []
    rates: dict[str, Rates] = {}
    devices: list[Cpu | Gpu] = [found.machine.cpu, *found.machine.gpus]
    for device in devices:
        key = key_of(device, found)
        if key in known and not anew:
            rates[key] = known[key]
        elif (missing or anew) and (isinstance(device, Cpu) or device.kind in MEASURED):
            got = measure(device)
            if isinstance(got, Rates):
                rates[key] = got
            else:
                label = device.label if isinstance(device, Gpu) else "the processor"
                notes.append(f"The rates of {label} could not be measured: {got}.")
    if rates.keys() - known.keys() or anew:
        add_to_table(path, {key: asdict(one) for key, one in rates.items()})
    return Calibrated(replace(found, machine=_rated(found, rates)), tuple(notes))


def _rated(found: Inventory, rates: Mapping[str, Rates]) -> Machine:
    machine, key = found.machine, key_of(found.machine.cpu, found)
    if key in rates and address_space() is not None:
        rates = {**rates, key: replace(rates[key], bfloat16=0.0)}
    gpus = (replace(gpu, rates=rates.get(key_of(gpu, found))) for gpu in machine.gpus)
    return Machine(replace(machine.cpu, rates=rates.get(key)), tuple(gpus))


def key_of(device: Cpu | Gpu, found: Inventory) -> str:
    """The key of a device's rates in the file: device, driver and torch."""
    who = f"{device.uuid} {device.name} driver {found.driver}" if isinstance(device, Gpu) else f"cpu {device.name}"
    return f"{who} torch {_torch()}"


def _torch() -> str:
    try:
        return version("torch")
    except PackageNotFoundError:
        return ""


def measure(device: Cpu | Gpu) -> Rates | str:
    """Measure a device: its rates, or why there are none."""
    command = [sys.executable, "-P", "-m", "marlaas.engine.devices.measuring"]
    if isinstance(device, Gpu):
        command += [device.kind]
        variables = environment([device])
    else:
        command += ["cpu", *map(str, device.cores[-1:])]
        variables = environment(())
    try:
        done = subprocess.run(command, env=os.environ | variables, capture_output=True, text=True, timeout=SECONDS)
    except subprocess.TimeoutExpired:
        return f"nothing came of it within {SECONDS:g} s"
    except OSError as error:
        return str(error)
    lines = (done.stdout if done.returncode == 0 else done.stderr).strip().splitlines()
    rates = _rates(_parsed(lines[-1])) if lines and done.returncode == 0 else None
    return rates or (lines[-1] if lines else f"it ended with status {done.returncode}")


def _read(path: Path) -> dict[str, Rates]:
    found = {key: _rates(value) for key, value in read_table(path).items()}
    return {key: rates for key, rates in found.items() if rates is not None}


def _parsed(text: str) -> object:
    try:
        return json.loads(text)
    except ValueError:
        return None


def _rates(value: object) -> Rates | None:
    if not isinstance(value, dict):
        return None
    numbers = [value.get(field.name) for field in fields(Rates)]
    good = [float(number) for number in numbers if isinstance(number, int | float) and isfinite(number)]
    rates = Rates(*good) if len(good) == len(numbers) else None
    return rates if rates and min(rates.matrix, rates.bandwidth) > 0 and rates.bfloat16 >= 0 else None
