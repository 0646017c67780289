"""What the machine computes on, as findings of ``marlaas doctor``: cores, memory, cards, and why a card is left alone.

Everything that may hang runs in a child process with a time limit, and nothing is ever raised.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any

from marlaas.engine.devices import NO_DRIVER, Cpu, Gpu, Ours, ResourceSettings, Survey, survey_machine
from marlaas.engine.errors import MarlaasError
from marlaas.engine.home import Home

from ...words import machine as words
from ...words.format import counted, line, size
from .finding import Finding

LOW_MEMORY = 2e9
_LONELY = "Sampling and training take turns on one core; two or more overlap them."


@dataclass(frozen=True)
class Devices:
    """What was found, as data and as lines."""

    seen: Survey
    findings: tuple[Finding, ...]

    def as_json(self) -> dict[str, Any]:
        """The devices as JSON, in bytes, operations a second and bytes a second."""
        seen = self.seen
        cards = [
            {**asdict(gpu), "label": gpu.label, "reason": seen.usable.reason(gpu.uuid)}
            for gpu in seen.found.machine.gpus
        ]
        return {
            "cpu": asdict(seen.usable.machine.cpu),
            "gpus": [{**card, "used": not card["reason"]} for card in cards],
            "driver": seen.found.driver,
            "cuda": seen.found.cuda,
        }


def look(home: Home, measure: bool = False) -> Devices:
    """Look at the devices; with ``measure`` each one that may be used is measured anew, which takes some seconds."""
    from marlaas.engine.home import load_settings

    try:
        resources = load_settings(home).resources
    except MarlaasError:  # the finding about the base reports it
        resources = ResourceSettings()
    seen = surveyed(home, resources, measure)
    return Devices(seen, tuple(findings(seen)))


def surveyed(home: Home, resources: ResourceSettings, measure: bool = False, missing: bool = False) -> Survey:
    """The devices as data. What the home's engine holds counts as free. Costs little on a machine without a driver.

    ``measure`` measures each device anew, which takes some seconds; ``missing`` those that have not been measured yet.
    """
    return survey_machine(resources, home.rates, Ours(_engine(home)), anew=measure, missing=missing)


def _engine(home: Home) -> frozenset[int]:
    """Ids of the processes of this home's engine, as it last wrote them down."""
    from ...reading.opening import opened

    try:
        if home.database.exists():
            with opened(home) as reader:
                return frozenset(row.pid for row in reader.workers() if row.pid is not None)
    except MarlaasError:  # the finding about the engine reports it
        pass
    return frozenset()


def findings(seen: Survey) -> Iterator[Finding]:
    """Lines on the processor, its memory, and every card."""
    yield _cores(seen.found.machine.cpu, seen.usable.machine.cpu)
    yield _memory(seen.usable.machine.cpu)
    found, usable = seen.found, seen.software
    if found.driver:
        cuda = f"{line(found.driver, 30)} with {f'CUDA {line(found.cuda, 20)}' if found.cuda else 'no CUDA'}"
        yield Finding("driver", "ok" if found.cuda else "note", cuda)
    if not found.machine.gpus:
        quiet = found.reason in ("", NO_DRIVER)
        value = f"none: {line(found.reason, 160) or 'this machine has none'}; all runs on the processor"
        yield Finding("gpu", "ok" if quiet else "note", value)
    for gpu in found.machine.gpus:
        yield _card(gpu, seen)
    for note in (*found.notes, *seen.usable.notes, *seen.notes):
        yield Finding("gpu", "note", line(note, 200))
    if seen.usable.machine.gpus:
        for reason in filter(None, (usable.vllm_reason, usable.torch_reason, usable.llama_reason)):
            yield Finding("software", "note", line(reason, 400))


def _cores(cpu: Cpu, left: Cpu) -> Finding:
    there = os.cpu_count() or cpu.count
    rates = words.rates(left.rates)
    parts = [
        str(left.count) if left.count == there else f"{left.count} of {there}",
        "" if cpu.count >= (len(cpu.cores) or there) else f"a quota leaves the time of {counted(cpu.count, 'core')}",
        "" if left.count == cpu.count else f"`cores` under [resources] leaves {left.count}",
        line(cpu.name, 60),
        f"{rates} a core" if rates else "not measured: `marlaas doctor --measure` does",
    ]
    value = " · ".join(part for part in parts if part)
    if left.count < 2:
        return Finding(
            "cores", "note", value, "Sampling and training take turns on one core; two or more overlap them."
        )
    return Finding("cores", "ok", value)


def _memory(left: Cpu) -> Finding:
    import psutil

    value = f"{size(left.memory)} free of {size(psutil.virtual_memory().total)}"
    if left.memory < LOW_MEMORY:
        return Finding("memory", "note", value, "Less than 2 GB are free; larger bases will not fit.")
    return Finding("memory", "ok", value)


def _card(gpu: Gpu, seen: Survey) -> Finding:
    reason = seen.usable.reason(gpu.uuid)
    value = words.card(gpu, seen.account)
    return Finding(gpu.label, "note" if reason else "ok", value, line(reason, 400))
