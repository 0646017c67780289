"""Check: what an episode computes after its last reply, and what it gains to have that in a score function.

While an episode grades inline, the other episodes of its process wait, and the sampler with them. So the same episodes
are played both ways: to their end, and only to their last reply. RollArt (arXiv 2512.22560) moves rewards off the
machinery that plays for the same reason. It is offered only where the author can do it: not for a library's
environment, which an adapter plays, nor where a score function is there already.
"""

from __future__ import annotations

import asyncio

from ..process.wire import Watched
from .crowd import LONG, SHORT, Crowd
from .finding import Finding
from .pace import Pace
from .plays import Played, play
from .subject import Subject

CHECK = "grading"
SHARE = 1 / 3
"""Of what an episode computes: it pays where so much comes after the last reply, which makes room for half as many
episodes again."""


async def look(subject: Subject, whole: Crowd, alive: int, pace: Pace) -> Crowd:
    """Play the episodes of ``whole`` again, up to the last reply of each, which it does not get; nothing where there
    cannot be anything to offer."""
    ended = [one for one in whole.played if one.score is not None and len(one.turns) > 1]
    if not subject.movable or len(ended) < whole.number or not _pays(whole.watched.computed, whole, alive):
        return Crowd()
    await subject.watch()
    began = pace.clock()
    try:
        played = await asyncio.gather(*(_unfinished(subject, one, pace) for one in ended))
    finally:
        seconds, watched = pace.clock() - began, await subject.watched()
    return Crowd(tuple(played), seconds, watched)


def judge(whole: Crowd, unfinished: Crowd, name: str, alive: int, cores: int) -> list[Finding]:
    """The offer, where it pays. ``name``: of the environment; ``alive``: episodes of a task; ``cores``: of this
    machine, on each of which one function can compute."""
    number = len(unfinished.played)
    if not number:
        return []
    after = whole.watched.computed - unfinished.watched.computed
    if after < SHARE * whole.watched.computed or not _pays(after, whole, alive):
        return []
    each, own = _spoken(after / number), _spoken(whole.watched.computed / number)
    place = _place(whole.watched, unfinished.watched)
    decorator = f"@{name}.score" if name.isidentifier() else "@NAME.score"
    text = (
        f"Of {own} that an episode computes, {each} come after its last reply{place}. {number} episodes at once took"
        f" {_spoken(whole.seconds)}, and {_spoken(unfinished.seconds)} without that: move it into a function under"
        f" {decorator}, which is given the task and what was said, and runs in processes of its own, {cores} at a time"
        f" on this machine, while other episodes play on."
    )
    return [Finding(CHECK, "warning", text)]


async def _unfinished(subject: Subject, one: Played, pace: Pace) -> Played:
    return await play(subject, one.index, one.reply, pace, most=len(one.turns) - 2)


def _pays(seconds: float, whole: Crowd, alive: int) -> bool:
    """Whether so many processor seconds of a crowd are worth a word."""
    each = seconds / max(1, len(whole.played))
    return each >= SHORT and each * alive >= LONG


def _place(whole: Watched, unfinished: Watched) -> str:
    """Where most of the difference was spent, as far as the event loop was kept busy by the author's own lines."""
    before = {(place.file, place.line): place.seconds for place in unfinished.places}
    own = {(place.file, place.line): place.seconds for place in whole.places if place.file}
    spent = {place: seconds - before.get(place, 0.0) for place, seconds in own.items()}
    most = max(spent, key=lambda place: spent[place], default=None)
    return f", at {most[0]}:{most[1]}" if most is not None and spent[most] > 0 else ""


def _spoken(seconds: float) -> str:
    return f"{seconds:.1f} s" if seconds >= 1 else f"{1000 * seconds:.0f} ms"
