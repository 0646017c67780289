"""What the way between the engine and a node costs a stage there, as a share of its speed. Pure.

A link takes no processor time, so it costs speed only where too little is under way to fill the time on it: slots wait
for the next turn, and policies wait for a version.
"""

from __future__ import annotations

from ...base import RANK, Wanted, adapter_bytes
from ...devices import Link

REPLY = 256
"""Tokens of a reply, until one is known: a slot is idle once a reply for as long as a call takes."""
STEP = 16_384
"""Tokens of a step, until one is known: a version travels once a step."""
MOMENTS = 3
"""A state file in adapters: the adapter itself and both moments of its optimizer."""


def kept(work: float, link: float, under_way: int) -> float:
    """Share of a device's speed that it keeps, where each of so many works of ``work`` seconds, all under way at the
    same time, waits for ``link`` seconds before its next one begins."""
    if link <= 0:
        return 1.0
    return min(1.0, under_way * work / (work + link))


def sampling_kept(link: Link, tokens_per_second: float, conversations: int, wanted: Wanted) -> float:
    """Share of its speed that a sampler of so many ``conversations`` keeps behind a link."""
    reply = REPLY * conversations / tokens_per_second
    turns = reply / (reply + link.call)  # a slot serves nobody while its answer and the next turn are on the way
    version = link.seconds(2, adapter_bytes(wanted.config, RANK))
    return turns * kept(STEP / tokens_per_second, version, wanted.tasks)


def training_kept(link: Link, tokens_per_second: float, wanted: Wanted) -> float:
    """Share of its speed that a trainer keeps behind a link: after each step its state comes home before the commit."""
    state = link.seconds(2, MOMENTS * adapter_bytes(wanted.config, RANK))
    return kept(STEP / tokens_per_second, state, wanted.tasks)
