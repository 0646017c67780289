"""Check: the two splits do not share instances.

Training leaves out every prompt that is also held out, so a few shared ones cost nothing. Where many are shared, the
space of prompts is too small; where they are shared in order, both splits are one sequence, entered at two places: that
is what seeding with ``seed + index`` does.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

from ...trajectories import Split
from .draws import Draw
from .finding import Finding

CHECK = "leaks"
MOST_SHARED = 0.3
RUN = 3
"""Pairs at the same distance from which two splits count as one sequence."""
FEW = 8
"""Different prompts below which shared ones may be in order by chance."""
_FAR = sorted({*(10**power for power in range(2, 9)), *(1 << power for power in (7, 10, 12, 16, 20, 24, 26))})
"""Distant indices of the train split; training draws as far out where a group is filled again and again."""


def far() -> Iterator[tuple[Split, int]]:
    """Train instances at which an eval split may begin that continues the train split from a round number."""
    return (("train", begin + offset) for begin in _FAR for offset in range(RUN))


def judge(train: Sequence[Draw], held_out: Sequence[Draw], distant: Sequence[Draw] = ()) -> list[Finding]:
    """``train``: the first instances of the split; ``distant``: some that come much later."""
    places: dict[str, list[int]] = {}
    for draw in held_out:
        if draw.prompt is not None:
            places.setdefault(draw.prompt, []).append(draw.index)
    drawn = [draw for draw in train if draw.prompt is not None]
    shared = sum(draw.prompt in places for draw in drawn)
    if not drawn or len(places) < 2:
        return []  # a prompt that is always the same does not identify instances
    if len(places) >= FEW and (moved := _shift([*train, *distant], places)):
        return [moved]
    text = f"{shared} of {len(drawn)} train prompts are held-out ones, too"
    total = sum(map(len, places.values()))
    if shared and len(places) * 2 < total:
        text = f"Only {len(places)} of {total} eval prompts differ, too few to hold them out, and {text}"
        return [Finding(CHECK, "warning", f"{text}: evaluation measures what was trained on.")]
    if shared > MOST_SHARED * len(drawn):
        advice = "the space of prompts is too small. Training skips them; settings that make it larger are better."
        return [Finding(CHECK, "warning", f"{text}: {advice}")]
    if shared:
        return [Finding(CHECK, "note", f"{text}; training skips them.")]
    return [Finding(CHECK, "note", f"None of {len(drawn)} train prompts is one of {len(places)} held-out ones.")]


def _shift(train: Sequence[Draw], places: dict[str, list[int]]) -> Finding | None:
    """The error where most shared prompts have the same distance between their indices."""
    meeting = [(draw, index) for draw in train for index in places.get(draw.prompt or "", ())]
    if not meeting:
        return None
    distance, times = Counter(draw.index - index for draw, index in meeting).most_common(1)[0]
    if times < RUN or times * 2 < len({draw.index for draw, _ in meeting}):
        return None
    draw, index = next((draw, index) for draw, index in meeting if draw.index - index == distance)
    by = f", moved by {abs(distance):,}" if distance else ""
    return Finding(
        CHECK,
        "error",
        f"The eval split is the train split{by}: {draw.place} has the first prompt of eval instance {index}, and so on."
        " Draw from ep.rng, which keeps the splits apart, or take ep.split into the seed.",
    )
