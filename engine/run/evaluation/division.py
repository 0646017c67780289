"""Which prompts a task is measured on, and which are kept out of its training for that. Pure.

Held-out instances are looked at up to their first prompt, and so are some that training would draw. Where the two are
drawn from the same few prompts, only a part of these can be held out.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ...rollout import PromptHash

FEWEST = 8
"""Where fewer different prompts come again and again, and no data rows are behind them, they are the few ways in which
a game opens: instances that open alike need not be alike. From eight on there are four to measure on, and four left."""
LARGEST_LOSS = 0.5
"""Share of training's draws that may meet a held-out prompt and be drawn again. Half: in a space of ten prompts five
are measured on and five trained on. With fewer to measure on a score would mean little, with fewer to train on nothing
else could be learned."""

HARDLY = 0.9
"""Share of the instances that must differ for repeats to be left unsaid: a few happen in large spaces, too."""


@dataclass(frozen=True)
class Division:
    """What is measured, and what is held out."""

    instances: tuple[int, ...]
    """The instances of the held-out split that are measured, each for a prompt of its own."""
    hashes: frozenset[PromptHash]
    """First prompts that training must not meet."""
    remark: str = ""
    """What a person should know of it; empty where every instance is measured, and its prompt held out."""


def divide(
    evaluated: Sequence[PromptHash | None],
    trained: Sequence[PromptHash],
    rows: bool,
    name: str = "held-out",
    taken: frozenset[PromptHash] = frozenset(),
) -> Division:
    """Divide what was looked at.

    ``evaluated``: the first prompt of each held-out instance, None where it has none; it is measured all the same, and
    fails. ``trained``: first prompts of some training instances. ``rows``: the tasks are rows of data, so two
    instances with one prompt are one. ``name``: of the prompts, for people. ``taken``: prompts that another split
    holds out; they are not measured here, and ``trained`` has none of them. The result is the same for every task on
    the environment.
    """
    first: dict[PromptHash, int] = {}
    for index, prompt in enumerate(evaluated):
        if prompt is not None:
            first.setdefault(prompt, index)
    silent = tuple(index for index, prompt in enumerate(evaluated) if prompt is None)
    drawn, different = len(evaluated) - len(silent), len({*first, *trained})
    if not rows and different < min(FEWEST, drawn + len(trained)):
        opens = "open with the same prompt" if different == 1 else f"have only {different} different first prompts"
        remark = (
            f"The {name} instances {opens}. Prompts do not tell one from another, so nothing is held out, and training"
            " may meet them too."
        )
        free = tuple(index for index, prompt in enumerate(evaluated) if prompt not in taken)
        return Division(free, frozenset(), remark)
    free_first = {prompt: index for prompt, index in first.items() if prompt not in taken}
    held = _held_out(frozenset(free_first), trained)
    instances = tuple(sorted((*silent, *(free_first[prompt] for prompt in held or free_first))))
    asked = sum(prompt not in taken for prompt in evaluated)
    left = len({*trained} - held)
    return Division(instances, held, _remark(asked, asked - len(silent), len(free_first), len(held), left, name))


def _held_out(prompts: frozenset[PromptHash], trained: Sequence[PromptHash]) -> frozenset[PromptHash]:
    """The prompts that are held out: as many as leave training enough of its draws, those that it never draws first,
    then in the order of their hashes, which nobody chose."""
    met = {prompt: trained.count(prompt) for prompt in prompts}
    room = LARGEST_LOSS * len(trained)
    held = set()
    for prompt in sorted(prompts, key=lambda prompt: (met[prompt] > 0, prompt)):
        if met[prompt] <= room:
            room -= met[prompt]
            held.add(prompt)
    return frozenset(held)


def _remark(asked: int, drawn: int, distinct: int, held: int, left: int, name: str) -> str:
    if not held and distinct:
        return (
            f"Training draws little but the {distinct} {name} prompts: nothing can be held out, and it meets them too."
        )
    if held < distinct:
        return (
            f"Training draws from the same prompts as the {name} split: {held} of its {distinct} are measured, and kept"
            f" out of training, which has {left} others of those that were looked at."
        )
    if distinct < HARDLY * drawn:
        return f"Only {distinct} of {asked} {name} prompts differ: each is measured once."
    return ""
