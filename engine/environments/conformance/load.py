"""Checks of speed: many episodes at once, what is computed after the last reply, the time of a turn."""

from __future__ import annotations

import asyncio
import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field

from ...spec import TrainSpec
from ..plugin import said
from ..process.wire import Place, Watched
from .finding import Finding, Level
from .replies import Canned, Played, play
from .subject import Pace, Subject

# Check: many episodes at once end as one alone does, and what keeps the process from playing them side by side.
#
# The event loop of a process runs the code of one episode at a time. A line that computes or sleeps without an await
# holds up all the others, and what that costs grows with how many are alive.

CHECK_CROWD = "concurrency"
FEWEST = 2
SHORT = 0.003
"""Seconds an episode below which a line that blocks is not worth a word: about what starting an episode takes."""
LONG = 1.0
"""Seconds that all episodes alive may wait for each other, on one process, before that is worth a warning."""
_MOST_PLACES = 3
_AGAIN = 4
"""Instances that failed among others, at most, that are played again alone."""


def alive_in(train: TrainSpec) -> int:
    """Most episodes that a task has alive at once: of the groups that may begin (``may_begin``)."""
    return train.groups_per_step * train.begun_members * (train.max_staleness + 1)


ALIVE = alive_in(TrainSpec())


@dataclass(frozen=True)
class Crowd:
    """Episodes that were played at once."""

    played: tuple[Played, ...] = ()
    seconds: float = 0.0
    watched: Watched = field(default_factory=Watched)
    again: tuple[Played, ...] = ()
    """Some of those that failed, played again alone."""
    unfinished: int = 0
    """How many others had not ended when the time was up."""
    alone: float = 0.0
    """Seconds that one took alone at most."""

    @property
    def number(self) -> int:
        """Episodes that were started at once."""
        return len(self.played) + self.unfinished

    def each(self, seconds: float) -> float:
        """For how long one episode keeps the loop, where they took turns at it: where some have not ended, by those
        that have, and at most as long as one takes alone."""
        return min(seconds / max(1, len(self.played)), self.alone) if self.unfinished else seconds / self.number


async def observe_crowd(
    subject: Subject, indices: Sequence[int], reply: Canned, most: int, alone: Sequence[Played], pace: Pace
) -> Crowd:
    """Play ``most`` episodes at once, whatever they take; nothing where all of those ``alone`` failed.

    They have what is left of the time, and as long as one took alone on top. What has not ended by then is cancelled.
    Of those that fail some are played again alone.
    """
    own = [math.fsum(one.turns) for one in alone if one.reply == reply and one.score is not None]
    if not own or most < FEWEST:
        return Crowd()
    chosen = [indices[place % len(indices)] for place in range(most)]
    await subject.watch()
    began = pace.clock()
    tasks = [asyncio.ensure_future(play(subject, index, reply, pace)) for index in chosen]
    try:
        await asyncio.wait(tasks, timeout=pace.left + max(own))
        seconds, watched = pace.clock() - began, await subject.watched()
        played = [task.result() for task in tasks if task.done()]
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    unfinished = len(tasks) - len(played)
    failed = list(dict.fromkeys(one.index for one in played if _fails(one)))[:_AGAIN]
    if unfinished and failed:
        await subject.renew()  # what was cancelled may keep its loop for long
    again = [await play(subject, index, reply, pace) async for index in pace.take(failed, share=1.0)]
    return Crowd(tuple(played), seconds, watched, tuple(again), unfinished, max(own))


def judge_crowd(crowd: Crowd, alive: int) -> list[Finding]:
    """Findings on episodes that failed only together, and on lines that block. ``alive``: episodes of a task."""
    number = crowd.number
    if not number:
        return []
    findings = _failed(crowd.played, crowd.again)
    worst = [(place, crowd.each(place.seconds)) for place in crowd.watched.places[:_MOST_PLACES]]
    blocking = [_blocks(place, each, number, alive) for place, each in worst if each >= SHORT]
    findings += blocking
    beside = (crowd.watched.computed - math.fsum(place.seconds for place in crowd.watched.places)) / number
    if beside * alive >= LONG:
        least = "at least " if crowd.unfinished else ""
        text = f"It computes for {least}{_spoken(beside)} an episode beside its event loop, in threads:"
        text += f" {number} episodes at once need {_spoken(number * beside)} of one core, as only one of them runs at a"
        text += f" time, and the {alive} that a task has alive {_spoken(alive * beside)}."
        findings.append(Finding(CHECK_CROWD, "note", text))
    if crowd.unfinished:
        findings.append(_unfinished(crowd, explained=bool(findings)))
    if not findings:
        text = f"{number} episodes at once ended as one alone does, in {_spoken(crowd.seconds)}; no line blocks."
        findings.append(Finding(CHECK_CROWD, "note", text))
    return findings


def _blocks(place: Place, each: float, number: int, alive: int) -> Finding:
    """What one line costs that blocks for ``each`` seconds an episode."""
    where = f"at {place.file}:{place.line}" if place.file else "in its library"
    level: Level = "warning" if each * alive >= LONG else "note"
    text = f"Blocks for {_spoken(each)} an episode {where}; no other episode of its process moves meanwhile."
    text += f" {number} episodes at once need {_spoken(number * each)} on one process, {_spoken(number * each / 2)} on"
    text += f" two; the {alive} that a task has alive need {_spoken(alive * each)} on one."
    if level == "warning":
        text += " Await what waits; what computes keeps nobody waiting in asyncio.to_thread, or in a score function."
    return Finding(CHECK_CROWD, level, text)


def _unfinished(crowd: Crowd, explained: bool) -> Finding:
    """How many of a crowd ended in time; ``explained``: whether something was found that keeps the others."""
    ended = (
        f"{len(crowd.played)} of {crowd.number} episodes at once ended in {_spoken(crowd.seconds)}, when this check's"
    )
    text = f"{ended} time was up; one alone takes up to {_spoken(crowd.alone)}."
    if explained:
        return Finding(CHECK_CROWD, "note", text)
    return Finding(CHECK_CROWD, "warning", f"{text} No line blocks: they wait for something that they share.")


def _fails(one: Played) -> bool:
    """Whether an episode ended without a reward, and was not skipped."""
    return one.score is None and (one.outcome is None or one.outcome.status != "skip")


def _failed(played: Sequence[Played], again: Sequence[Played]) -> list[Finding]:
    """Errors for episodes that ended without a reward: for those that fail alone, too, and for those that do not."""
    alone = [one for one in again if _fails(one)]
    known = {one.index for one in alone}
    failed = [one for one in played if _fails(one)]
    crowded = [one for one in failed if one.index not in known]
    findings = []
    if alone:
        number = len(failed) - len(crowded)
        fail = f"{'fails' if number == 1 else 'fail'}, alone, too (train instance {alone[0].index})"
        findings.append(
            Finding(CHECK_CROWD, "error", f"{number} of {len(played)} episodes {fail}: {_reason(alone[0])}.")
        )
    if crowded and len(alone) < max(1, len(again)):  # where all that were tried fail alone, the rest may do so, too
        text = f"{len(crowded)} of {len(played)} episodes that are played at once fail, and none alone:"
        text += f" {_reason(crowded[0])}. What they share has to bear as many."
        findings.append(Finding(CHECK_CROWD, "error", text))
    return findings


def _reason(failed: Played) -> str:
    if failed.outcome is None:
        return "it does not end"
    return said(failed.outcome.failure) if failed.outcome.failure is not None else failed.outcome.status


def _spoken(seconds: float) -> str:
    return f"{seconds:.1f} s" if seconds >= 1 else f"{1000 * seconds:.0f} ms"


# Check: what an episode computes after its last reply, and what it gains to have that in a score function.
#
# While an episode grades inline, the other episodes of its process wait, and the sampler with them. So the same
# episodes are played both ways: to their end, and only to their last reply. RollArt (arXiv 2512.22560) moves rewards
# off the machinery that plays for the same reason. It is offered only where the author can do it: not for a library's
# environment, which an adapter plays, nor where a score function is there already.

CHECK_GRADING = "grading"
SHARE = 1 / 3
"""Of what an episode computes: it pays where so much comes after the last reply, which makes room for half as many
episodes again."""


async def observe_grading(subject: Subject, whole: Crowd, alive: int, pace: Pace) -> Crowd:
    """Play the episodes of ``whole`` again, up to the last reply of each, which it does not get; nothing where there
    cannot be anything to offer."""
    ended = [one for one in whole.played if one.score is not None and len(one.turns) > 1]
    if not subject.movable or len(ended) < whole.number or not _pays(whole.watched.computed, whole, alive):
        return Crowd()
    await subject.watch()
    began = pace.clock()
    try:
        played = await asyncio.gather(*(_until_last_reply(subject, one, pace) for one in ended))
    finally:
        seconds, watched = pace.clock() - began, await subject.watched()
    return Crowd(tuple(played), seconds, watched)


def judge_grading(whole: Crowd, unfinished: Crowd, name: str, alive: int, cores: int) -> list[Finding]:
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
    return [Finding(CHECK_GRADING, "warning", text)]


async def _until_last_reply(subject: Subject, one: Played, pace: Pace) -> Played:
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


# Check: the environment is quick enough that the model need not wait for it.

CHECK_LATENCY = "latency"
SLOW_TURN = 1.0
"""Seconds of the median turn from which an environment is slow."""
SLOWEST_TURN = 5.0
SLOW_START = 10.0


def judge_latency(start: float, first: float, turns: Sequence[float]) -> list[Finding]:
    """Findings on seconds: ``start`` until the process served, ``first`` until the first prompt, and for each turn."""
    findings = []
    begin = f"Its process takes {_precise(start)} to start and {_precise(first)} to its first prompt"
    if start + first > SLOW_START:
        advice = "Every edit and every restart waits for that; load less, or load it when it is first needed."
        findings.append(Finding(CHECK_LATENCY, "warning", f"{begin}. {advice}"))
    else:
        findings.append(Finding(CHECK_LATENCY, "note", f"{begin}."))
    if not turns:
        return findings
    middle, worst = statistics.median(turns), max(turns)
    text = f"A turn takes {_precise(middle)} of its own time (median of {len(turns)}), {_precise(worst)} at worst"
    if middle > SLOW_TURN or worst > SLOWEST_TURN:
        advice = "Every episode waits for that at every turn: do less in it, or prepare it in setup."
        findings.append(Finding(CHECK_LATENCY, "warning", f"{text}. {advice}"))
    else:
        findings.append(Finding(CHECK_LATENCY, "note", f"{text}."))
    return findings


def _precise(seconds: float) -> str:
    return f"{seconds:.1f} s" if seconds >= 1 else f"{1000 * seconds:.{0 if seconds >= 0.01 else 1}f} ms"
