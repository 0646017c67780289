"""Which nodes there are for people, which one they mean, and whether it may be drained. Pure."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from difflib import get_close_matches
from typing import Protocol, TypeVar


class Known(Protocol):
    """The part of a node that is looked at here."""

    @property
    def id(self) -> str:
        """Ray's id."""

    @property
    def name(self) -> str:
        """What people call it."""

    @property
    def alive(self) -> bool:
        """Whether it is there."""

    @property
    def refused(self) -> str:
        """Why it is not used; empty where it is."""


T = TypeVar("T", bound=Known)


def of_each_name(nodes: Sequence[T]) -> tuple[T, ...]:
    """One node of each name, one that is there before one that is gone: a machine that joins again has another id."""
    found: dict[str, T] = {}
    for node in nodes:
        if node.name not in found or (node.alive and not found[node.name].alive):
            found[node.name] = node
    return tuple(node for node in nodes if found[node.name] is node)


def meant(word: str, nodes: Sequence[Known]) -> tuple[str, str]:
    """The name of the node that ``word`` means, its name or the begin of its id, and else why it means none."""
    names = [node.name for node in nodes]
    if word in names:
        return word, ""
    begun = sorted({node.name for node in nodes if len(word) >= 4 and node.id.startswith(word)})
    if len(begun) == 1:
        return begun[0], ""
    close = get_close_matches(word, names, n=1)
    hint = f"Did you mean {close[0]}?" if close else "`marlaas cluster status` lists them."
    return "", f"The cluster has no node {word!r}. {hint}"


def why_not_drain(name: str, nodes: Sequence[Known], drained: Collection[str]) -> str:
    """Why a node cannot be drained: nothing would be left to work on; empty where it can."""
    others = [
        node.name
        for node in nodes
        if node.alive and not node.refused and node.name != name and node.name not in drained
    ]
    if others:
        return ""
    return (
        f"{name} is the only node that works: nothing would be left. Let another join first, or stop the engine with"
        " `marlaas engine drain`."
    )
