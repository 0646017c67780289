"""Finds the accounts of the processes that the driver lists on a card, with psutil.

In a container the driver may list process ids from outside, whose accounts stay empty, or none.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Collection, Iterable
from dataclasses import dataclass

import psutil

from ..machine import Holder

PEOPLE = 500 if sys.platform == "darwin" else 1000
"""Account numbers below this belong to the system (``UID_MIN`` of login.defs)."""


@dataclass(frozen=True)
class Listed:
    """A process as the driver lists it on one card."""

    pid: int
    memory: int
    """Bytes; 0 where the driver does not say."""
    computes: bool
    """Whether it has a compute context; else it only draws."""


def holders_of(listed: Iterable[Listed], ours: Collection[int]) -> tuple[Holder, ...]:
    """One holder for each process, the largest first; ``ours`` are the processes of this home's engine."""
    merged: dict[int, Listed] = {}
    for one in listed:  # a process that both draws and computes is in both of the driver's lists, with the same memory
        known = merged.get(one.pid, Listed(one.pid, 0, False))
        merged[one.pid] = Listed(one.pid, max(known.memory, one.memory), known.computes or one.computes)
    found = [_holder(one, ours) for one in merged.values()]
    return tuple(sorted(found, key=lambda holder: (-holder.memory, holder.pid)))


def own_account() -> str:
    """The account of this process, as ``Holder.account`` would name it."""
    return psutil.Process().username()


def _holder(one: Listed, ours: Collection[int]) -> Holder:
    account, system, is_ours = "", False, one.pid in ours
    with contextlib.suppress(psutil.Error):
        process = psutil.Process(one.pid)
        account = process.username()
        system = not one.computes and process.uids().real < PEOPLE
        is_ours = is_ours or (bool(ours) and any(parent.pid in ours for parent in process.parents()))
    return Holder(one.pid, account, one.memory, is_ours, screen=system)
