"""Processors and cards in words: short, safe texts. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from marlaas.engine.devices import Gpu, Holder, Rates

from ..format import line, share, size

SHOWN = 3
"""Holders that are named; the others are counted."""


def rates(found: Rates | None) -> str:
    """``780.0 Tflop/s, 4.0 TB/s``, and for a processor its bfloat16; empty where nothing was measured."""
    if found is None:
        return ""
    halves = f" ({flops(found.bfloat16)} in bfloat16)" if found.bfloat16 else ""
    return f"{flops(found.matrix)}{halves}, {size(found.bandwidth)}/s"


def flops(value: float) -> str:
    """Operations a second: 72 Gflop/s, 780.0 Tflop/s."""
    return f"{value / 1e12:.1f} Tflop/s" if value >= 1e12 else f"{value / 1e9:.0f} Gflop/s"


def memory(free: int, total: int) -> str:
    """The free memory of a card."""
    return f"{size(free)} of {size(total)} free"


def held(holders: Sequence[Holder], account: str = "") -> str:
    """Who holds memory, largest first: ``anna 12.3 GB, this engine 2.0 GB``; ``account`` is the reader's own."""
    sums: dict[str, int] = {}
    for holder in holders:
        who = _who(holder, account)
        sums[who] = sums.get(who, 0) + holder.memory
    told = [f"{who} {size(memory)}" if memory else who for who, memory in sums.items()]
    more = [f"{len(told) - SHOWN} more"] if len(told) > SHOWN else []
    return ", ".join([*told[:SHOWN], *more])


def _who(holder: Holder, account: str) -> str:
    if holder.ours:
        return "this engine"
    if holder.screen:
        return "the screen"
    if not holder.account:
        return "somebody unseen"
    return "you" if holder.account == account else line(holder.account, 24)


def card(gpu: Gpu, account: str) -> str:
    """All that is known of a card, on one line."""
    parts = [
        line(gpu.name, 40),
        memory(gpu.free, gpu.memory),
        "" if gpu.utilisation is None else f"{share(gpu.utilisation)} busy",
        f"held by {held(gpu.holders, account)}" if gpu.holders else "",
        rates(gpu.rates) or "not measured",
        "one process at a time" if gpu.mode == "exclusive" else "",
    ]
    return " · ".join(part for part in parts if part)
