"""Imaginary nodes, and a placement over them in one line."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from marlaas.engine.devices.machine import Cpu, Link, Machine, Placement, Software, UsableNode
from tests.engine.machine.placement.imaginary import ALL, LAPTOP, NOTHING, machine

HEAD = "head"
"""The engine's own machine."""
PAIR = replace(LAPTOP, cores=(0, 1), count=2)


def node(name: str, found: Machine, software: Software = ALL, **more: Any) -> UsableNode:
    """A node with all of its memory free; ``HEAD`` is the engine's machine."""
    made = UsableNode("" if name == HEAD else f"id-{name}", name, found, software, found.cpu.memory)
    return replace(made, **more)


def plain(name: str, cpu: Cpu = LAPTOP, **more: Any) -> UsableNode:
    """A node without cards."""
    return node(name, machine(cpu=cpu), NOTHING, **more)


def cards(name: str, *kinds: str, **more: Any) -> UsableNode:
    """A node with these cards."""
    return node(name, machine(*kinds), ALL, **more)


def slow(call: float, bytes_a_second: float) -> Link:
    """A link with so long a way there and back."""
    return Link(call, 1 / bytes_a_second)


def shape(placement: Placement) -> str:
    """``b:0 b:1 | head:2 bf16``: which cards or how many cores of which node sample, and which train how."""
    samplers = " ".join(_where(own.node, own.place.gpus, own.place.cores) for own in placement.samplers)
    trainers = " ".join(_where(own.node, own.place.gpus, own.place.cores) for own in placement.trainers)
    return f"{samplers} | {trainers} {placement.trainer.precision} {placement.trainer.sharing}".strip()


def _where(node: str, gpus: tuple[str, ...], cores: tuple[int, ...]) -> str:
    name = node.removeprefix("id-") or HEAD
    return f"{name}:{'+'.join(uuid.removeprefix('GPU-') for uuid in gpus) or f'cpu{len(cores)}'}"
