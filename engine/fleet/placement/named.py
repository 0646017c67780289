"""Devices that ``marlaas.toml`` names, where there are several machines. Pure.

A device of the engine's machine is named as ever: ``gpu 0``, ``cpu``. ``NODE/gpu 0`` is one of another node, ``NODE``
alone is all of it. Where a list names something, its stage runs on nothing else.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from ...devices import UsableNode
from ...errors import ConfigError
from .wishes import CPU, Choices
from .words import together


def choices_at(nodes: Sequence[UsableNode], choices: Choices) -> dict[str, tuple[Choices, bool, bool]]:
    """For each node, by its id: the choices as they hold there, and whether it may sample and may train.

    Raises ``ConfigError`` for names that no node has.
    """
    rollout = _by_node(nodes, choices.rollout, "[rollout]")
    training = _by_node(nodes, choices.training, "[training]")
    return {
        node.node: (
            replace(choices, rollout=rollout.get(node.node, ()), training=training.get(node.node, ())),
            not choices.rollout or node.node in rollout,
            not choices.training or node.node in training,
        )
        for node in nodes
    }


def _by_node(nodes: Sequence[UsableNode], names: Sequence[str], table: str) -> dict[str, tuple[str, ...]]:
    """The devices that are named of each node; none for a node that is named as a whole."""
    found: dict[str, list[str]] = {}
    for name in names:
        before, slash, device = name.strip().partition("/")
        node = _named(nodes, before)
        if slash and node is None:
            known = together([node.name for node in nodes])
            raise ConfigError(f"`devices` under {table} names the node {before!r}.", f"There are: {known}.")
        if node is not None and (slash or before.lower() != CPU):
            found.setdefault(node.node, [])
            if slash:
                found[node.node].append(device)
        elif any(not node.node for node in nodes):
            found.setdefault("", []).append(name)
        else:
            raise ConfigError(
                f"`devices` under {table} has {name!r}, and the engine's own machine is not to be used.",
                "Write NODE/ before it, or undrain the machine.",
            )
    return {node: tuple(devices) for node, devices in found.items()}


def _named(nodes: Sequence[UsableNode], word: str) -> UsableNode | None:
    return next((node for node in nodes if word and word.lower() in (node.name.lower(), node.node.lower())), None)
