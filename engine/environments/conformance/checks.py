"""The checks, each a function from observations to findings, and the texts of all findings."""

from __future__ import annotations

import asyncio
import math
import statistics
from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from itertools import permutations, product
from typing import Protocol

from marlaas.plugins.messages import Ask

from ...errors import MarlaasError
from ...spec.task import TrainSpec
from ...trajectories import Split
from ..plugin import said
from ..process.wire import Place
from ..protocol import DataFacts, EpisodeOutcome
from .finding import Finding, Level
from .subject import CONSTANTS, JUNK, MOST_TURNS, WRONG_CALL, Canned, Draw, Pace, Played, Subject, draw, play

TEXTS: dict[str, tuple[Level, str]] = {
    "instances.failed": ("error", "{some} have no first prompt: {place} ends before it: {reason}."),
    "instances.never": (
        "error",
        "It never calls `ep.ask`: {some} end without it. Nothing can be learned from that.",
    ),
    "instances.silent": (
        "warning",
        "{some} end without asking the model, such as {place}: nothing is learned from them. Raise Skip where a draw is"
        " unusable.",
    ),
    "instances.skipped": ("note", "{some} are skipped by the environment."),
    "determinism.again": (
        "error",
        "The first prompt of {place} changes when it is drawn again: {contrast}. {some} do that. Draw from ep.rng"
        " alone, not from the module random, the time, or what earlier episodes left behind.",
    ),
    "determinism.elsewhere": (
        "error",
        "The first prompt of {place} changes in another process: {contrast}. {some} do that. Draw from ep.rng alone: a"
        " process may begin with any instance, and forgets what the one before it knew.",
    ),
    "determinism.member": (
        "error",
        "The first prompt of {place} differs between the members of a group: {contrast}. {some} do that. Draw the task"
        " from ep.rng, which they share; ep.noise is for what happens after the first prompt.",
    ),
    "determinism.same": (
        "note",
        "{number} instances had the same first prompt again, in another process, and for another member.",
    ),
    "variety.same": (
        "warning",
        "{prompts} are the same. That is right for a game that always opens alike; else draw the task from ep.rng.",
    ),
    "variety.repeated": (
        "warning",
        "Only {distinct} of {number} eval prompts differ: what is asked again tells nothing new. Evaluate no more"
        " prompts than there are, or draw from more.",
    ),
    "variety.differ": ("note", "{prompts} differ."),
    "leaks.moved": (
        "error",
        "The eval split is the train split{by}: {place} has the first prompt of eval instance {index}, and so on. Draw"
        " from ep.rng, which keeps the splits apart, or take ep.split into the seed.",
    ),
    "leaks.few": (
        "warning",
        "Only {distinct} of {number} eval prompts differ, too few to hold them out, and {shared} train prompts are"
        " held-out ones, too: evaluation measures what was trained on.",
    ),
    "leaks.small": (
        "warning",
        "{shared} train prompts are held-out ones, too: the space of prompts is too small. Training skips them;"
        " settings that make it larger are better.",
    ),
    "leaks.some": ("note", "{shared} train prompts are held-out ones, too; training skips them."),
    "leaks.none": ("note", "None of {drawn} train prompts is one of {distinct} held-out ones."),
    "lengths.refused": ("error", "The first prompt of {place} cannot be put to the base model: {reason}"),
    "lengths.characters": (
        "note",
        "First prompts have {mean:,.0f} characters on average, at most {longest:,}; no base was there to count tokens.",
    ),
    "lengths.tokens": (
        "note",
        "First prompts have {mean:,.0f} tokens on average, at most {longest:,} ({place}); a conversation has room for"
        " {context:,}{advice}.",
    ),
    "rows.number": ("note", "{train:,} rows to train on, {held_out:,} to evaluate with.{order}"),
    "rows.shared": (
        "warning",
        "{number:,} evaluation rows are train rows, too: a score measures what was learned by heart. Take them out of"
        " one of the two.",
    ),
    "rows.repeated": (
        "warning",
        "{number:,} evaluation rows are copies of another one, so a score says less than its number.",
    ),
    "junk.survived": ("note", "{number} odd replies ended in time, and with a reward."),
    "junk.alarm": (
        "error",
        "It fails for each of the {number} replies that were tried: {reason}. A plain `def` plays in a thread, where"
        " Python takes no signals: move what sets an alarm into a function under {decorator}, which runs in a process"
        " of its own.",
    ),
    "junk.always": (
        "error",
        "It fails for each of the {number} replies that were tried: {reason}. If a right reply fails there, too, the"
        " environment is wrong; give a bad one a reward, or raise Invalid.",
    ),
    "junk.paid": (
        "warning",
        "It fails for each of the {number} replies that were tried: {reason}. `on_error` pays all of them alike: try"
        " whether a right reply earns more.",
    ),
    "junk.endless": (
        "error",
        "Given {replies}, it asks more than {most:,} times. Bound the turns of an episode.",
    ),
    "junk.timeout": ("error", "Given {replies}, it ends too late: {reason}. Bound the work that a reply can cause."),
    "junk.skip": (
        "warning",
        "Given {replies}, it raises Skip: the reply costs nothing. Skip is for unusable draws; a bad reply is Invalid,"
        " which has a reward.",
    ),
    "junk.error": (
        "error",
        "Given {replies}, it fails: {reason}. A model says anything: give such a reply a reward, or raise Invalid.",
    ),
    "baseline.game": (
        "note",
        "What one agent wins another loses: their rewards sum to {total:.3g} whatever is said, so one answer from all"
        " of them tells nothing. A task's score does, against an opponent under [eval] agents.",
    ),
    "baseline.nothing": ("note", "No constant answer earns anything: {number} were tried."),
    "baseline.low": (
        "note",
        "{answer} scores {mean:.2f} on average over {many}: the best of {number} constant answers.",
    ),
    "baseline.high": (
        "warning",
        "{answer} scores {mean:.2f} on average over {many}: rewards can be had without reading the prompt.{others}",
    ),
    "rewards.range": (
        "note",
        "Canned replies earned {low:.3g} to {high:.3g}, {mean:.3g} on average (standard deviation {deviation:.2g}).",
    ),
    "rewards.large": (
        "warning",
        "Canned replies earned {low:.3g} to {high:.3g}, {mean:.3g} on average (standard deviation {deviation:.2g})."
        " Rewards of such a size make steps of that size: bring them to the order of 1.",
    ),
    "rewards.nonsense": (
        "warning",
        "It pays to be unreadable: at train instance {index} {reply} is invalid and earns {score:.3g}, {other} is not"
        " and earns {least:.3g}. Give Invalid a reward= below all.",
    ),
    "rewards.changed": (
        "warning",
        "The same replies earn another reward the second time ({number} of {tried} episodes): {reply} at train instance"
        " {index} earns {first}, then {second}. Draw what is random from ep.rng or ep.noise.",
    ),
    "agents.undeclared": (
        "note",
        "{number} agents speak, and none is declared. With @env(agents=({names})) a task that leaves one out is refused"
        " when it is submitted.",
    ),
    "agents.silent": (
        "warning",
        "{names}: declared and never asked in {number} episodes with odd replies; a policy for it would learn nothing."
        " Remove it from @env(agents=…), unless only good replies lead to it.",
    ),
    "agents.asked": ("note", "All {number} agents that it declares were asked: {names}."),
    "sandbox.late": (
        "warning",
        "In {late} of {used} episodes a program in the sandbox ran out of time, such as at train instance {index},"
        " given {reply}: a right answer may well do so, too. Give it more seconds=…, or less to do.",
    ),
    "concurrency.failed": (
        "error",
        "{failed} of {number} episodes that are played at once fail, and none alone: {reason}. What they share has to"
        " bear as many.",
    ),
    "concurrency.blocks": (
        "note",
        "Blocks for {each} an episode {place}; no other episode of its process moves meanwhile. {number} episodes at"
        " once need {all} on one process, {half} on two; the {alive} that a task has alive need {total} on one."
        "{advice}",
    ),
    "concurrency.ended": (
        "note",
        "{ended} of {number} episodes at once ended in {seconds}, when this check's time was up; one alone takes up to"
        " {alone}.",
    ),
    "concurrency.waits": (
        "warning",
        "{ended} of {number} episodes at once ended in {seconds}, when this check's time was up; one alone takes up to"
        " {alone}. No line blocks: they wait for something that they share.",
    ),
    "concurrency.well": ("note", "{number} episodes at once ended as one alone does, in {seconds}; no line blocks."),
    "grading.move": (
        "warning",
        "Of {own} that an episode takes of its own, {after} come after its last reply. Move that into a function under"
        " {decorator}, which is given the task and what was said, and runs in other processes while episodes play on.",
    ),
    "latency.start": ("note", "Its process takes {start} to start and {first} to its first prompt.{advice}"),
    "latency.turn": (
        "note",
        "A turn takes {middle} of its own time (median of {number}), {worst} at worst.{advice}",
    ),
}


def finding(case: str, level: Level | None = None, /, **words: object) -> Finding:
    """The finding of a case in ``TEXTS``; ``level`` replaces the usual one."""
    usual, text = TEXTS[case]
    return Finding(case.partition(".")[0], level or usual, text.format(**words))


# Instances and their first prompts.

MOST_SKIPPED = 0.5
INSTANCES = 5
ENOUGH_PROMPTS = 8
"""Prompts of a split below which equal ones mean nothing, and shared ones may be in order by chance."""
CHANCE = 0.25
"""Share of repeated prompts up to which they are chance: of 64 draws from 441 sums, one in fifteen repeats."""
MOST_SHARED = 0.3
RUN = 3
"""Pairs at the same distance from which two splits count as one sequence."""
CROWDED = 0.75
"""Share of the context from which a prompt leaves little room."""
_SHOWN, _BEFORE = 24, 8
"""Characters that are shown of a changed prompt, and how many of them come before the change."""
_FAR = sorted({*(10**power for power in range(2, 9)), *(1 << power for power in (7, 10, 12, 16, 20, 24, 26))})


def check_instances(draws: Sequence[Draw]) -> list[Finding]:
    """Errors, time limits, skipped draws, and episodes that never ask."""
    ended = [(draw, draw.reached) for draw in draws if isinstance(draw.reached, EpisodeOutcome)]
    failed = [(draw, outcome) for draw, outcome in ended if outcome.status not in ("ok", "skip")]
    silent = [draw for draw, outcome in ended if outcome.status == "ok"]
    skipped = len(ended) - len(failed) - len(silent)
    found = []
    if failed:
        draw, outcome = failed[0]
        reason = said(outcome.failure) if outcome.failure else f"it ended as {outcome.status}"
        found.append(finding("instances.failed", some=_of(len(failed), draws), place=draw.place, reason=reason))
    if silent:
        case = "instances.never" if len(silent) + skipped == len(draws) else "instances.silent"
        found.append(finding(case, some=_of(len(silent), draws), place=silent[0].place))
    if skipped:
        level: Level = "warning" if skipped > MOST_SKIPPED * len(draws) else "note"
        found.append(finding("instances.skipped", level, some=_of(skipped, draws)))
    return found


Repeats = tuple[Draw, Draw, Draw, Draw]
"""One instance: drawn first, again, in a fresh process and another order, and by another sample of the group."""


async def draw_again(subject: Subject, seen: Sequence[Draw], pace: Pace, share: float) -> list[Repeats]:
    """Draw some instances with a first prompt again; the subject then has a fresh process."""
    prompts = [[one for one in seen if one.split == split and one.prompt is not None] for split in ("train", "eval")]
    chosen = [one for of_split in prompts for one in of_split[:INSTANCES]]
    again = [await draw(subject, one.split, one.index, pace) async for one in pace.take(chosen, share)]
    await subject.renew()
    repeats = []
    async for first, second in pace.take(reversed(list(zip(chosen, again, strict=False))), share):
        elsewhere = await draw(subject, first.split, first.index, pace)
        member = await draw(subject, first.split, first.index, pace, member=1)
        repeats.append((first, second, elsewhere, member))
    return repeats[::-1]


def check_determinism(repeats: Sequence[Repeats]) -> list[Finding]:
    """An instance is the same each time, in every process and for every sample of a group.

    The advantage of an answer is its reward minus that of other answers to the same prompt.
    """
    found: list[Finding] = []
    reported: set[int] = set()  # what changes in one process changes in the next
    for case, left, right in (("again", 0, 1), ("elsewhere", 0, 2), ("member", 2, 3)):
        pairs = [(draws[left], draws[right]) for draws in repeats]
        changed = [
            place
            for place, (one, other) in enumerate(pairs)
            if place not in reported and isinstance(one.reached, Ask) and one.reached != other.reached
        ]
        reported.update(changed)
        if changed:
            one, other = pairs[changed[0]]
            words = {"place": one.place, "contrast": _contrast(one, other), "some": _of(len(changed), repeats)}
            found.append(finding(f"determinism.{case}", **words))
    return found or [finding("determinism.same", number=len(repeats))][: len(repeats)]


def _contrast(one: Draw, other: Draw) -> str:
    if isinstance(other.reached, EpisodeOutcome):
        failure = other.reached.failure
        return f"it has none then ({said(failure) if failure else other.reached.status})"
    if one.text == other.text:
        return "its tools, limits or agent differ"
    pairs = zip(one.text, other.text, strict=False)
    same = next((place for place, (a, b) in enumerate(pairs) if a != b), min(len(one.text), len(other.text)))
    start = max(0, same - _BEFORE)
    dots = "…" if start else ""
    return ", then ".join(f"{dots + text[start : start + _SHOWN]!r}" for text in (one.text, other.text))


def check_variety(draws: Sequence[Draw]) -> list[Finding]:
    """Different instances have different first prompts."""
    found, alike, shares = [], [], []
    for split in ("train", "eval"):
        prompts = [draw.prompt for draw in draws if draw.split == split and draw.prompt is not None]
        number, distinct = len(prompts), len(set(prompts))
        if distinct == 1 and number >= ENOUGH_PROMPTS:
            alike.append(f"all {number} {split} prompts")
        elif split == "eval" and distinct < (1.0 - CHANCE) * number and number >= ENOUGH_PROMPTS:
            found.append(finding("variety.repeated", distinct=distinct, number=number))
        elif prompts:
            shares.append(f"{distinct} of {number} {split} prompts")
    if alike:
        found.insert(0, finding("variety.same", prompts=" and ".join(alike).replace("all", "All", 1)))
    if shares:
        found.append(finding("variety.differ", prompts=" and ".join(shares)))
    return found


def far() -> Iterator[tuple[Split, int]]:
    """Train instances at which an eval split may begin if it continues the train split from a round number."""
    return (("train", begin + offset) for begin in _FAR for offset in range(RUN))


def check_leaks(train: Sequence[Draw], held_out: Sequence[Draw], distant: Sequence[Draw] = ()) -> list[Finding]:
    """The two splits do not share instances. ``distant``: train instances that come much later.

    Training leaves out every held-out prompt, so a few shared ones cost nothing. Many mean that the space of prompts is
    too small; many in order, that both splits are one sequence, as with ``seed + index``.
    """
    places: dict[str, list[int]] = {}
    for one in held_out:
        if one.prompt is not None:
            places.setdefault(one.prompt, []).append(one.index)
    prompts = [draw.prompt for draw in train if draw.prompt is not None]
    shared, number = sum(prompt in places for prompt in prompts), sum(map(len, places.values()))
    if not prompts or len(places) < 2:
        return []  # a prompt that is always the same does not identify instances
    meeting = [(draw, index) for draw in (*train, *distant) for index in places.get(draw.prompt or "", ())]
    if len(places) >= ENOUGH_PROMPTS and meeting:
        distance, times = Counter(draw.index - index for draw, index in meeting).most_common(1)[0]
        if times >= RUN and times * 2 >= len({draw.index for draw, _ in meeting}):
            first, index = next((draw, index) for draw, index in meeting if draw.index - index == distance)
            by = f", moved by {abs(distance):,}" if distance else ""
            return [finding("leaks.moved", by=by, place=first.place, index=index)]
    case = "few" if shared and len(places) * 2 < number else "small" if shared > MOST_SHARED * len(prompts) else "some"
    words = {"shared": f"{shared} of {len(prompts)}", "distinct": len(places), "number": number, "drawn": len(prompts)}
    return [finding(f"leaks.{case if shared else 'none'}", **words)]


class Ruler(Protocol):
    """Counts the tokens of prompts as the trained base does."""

    @property
    def context(self) -> int:
        """Most tokens of a conversation."""

    async def tokens(self, ask: Ask) -> int:
        """Tokens of a first prompt; a lower bound if it is much too long.

        Raises ``ValueError`` or ``BaseModelError`` if the base's template refuses it.
        """


async def check_lengths(draws: Sequence[Draw], ruler: Ruler | None, pace: Pace, share: float) -> list[Finding]:
    """First prompts leave room for an answer. Lengths are in tokens, or without a ruler in characters."""
    lengths: list[tuple[int, Draw]] = []
    found: list[Finding] = []
    asked = [(draw, draw.reached) for draw in draws if isinstance(draw.reached, Ask)]
    async for one, ask in pace.take(asked, share):
        try:
            characters = sum(len(message.content) for message in ask.messages)
            lengths.append((await ruler.tokens(ask) if ruler else characters, one))
        except (ValueError, MarlaasError) as error:
            found = found or [finding("lengths.refused", place=one.place, reason=error)]
    if not lengths:
        return found
    longest, longest_draw = max(lengths, key=lambda pair: pair[0])
    mean = math.fsum(length for length, _ in lengths) / len(lengths)
    if ruler is None:
        return [*found, finding("lengths.characters", mean=mean, longest=longest)]
    level: Level = "note"
    advice = ""
    if longest >= ruler.context:
        level, advice = "error", ". Say less at once, or give the base a larger context"
    elif longest > CROWDED * ruler.context:
        level, advice = "warning", ", and little of it is left for answers"
    words = {"mean": mean, "longest": longest, "place": longest_draw.place, "context": ruler.context, "advice": advice}
    return [*found, finding("lengths.tokens", level, **words)]


def check_rows(facts: DataFacts) -> list[Finding]:
    """Evaluation rows that are copies or are trained on; the number of rows and their order."""
    survey = facts.survey
    if survey is None:
        return []
    sorted_by = survey.blocks.items()
    order = "".join(f" They lie sorted by {c!r} ({n:,} values); each epoch shuffles them." for c, n in sorted_by)
    found = [finding("rows.number", train=facts.train, held_out=facts.held_out, order=order)]
    counts = {"rows.shared": survey.shared, "rows.repeated": survey.repeated}
    return [*found, *(finding(case, number=number) for case, number in counts.items() if number)]


# Replies and what they earn.

JUNK_INSTANCES = 3
SIGNALS = "signal only works in main thread"
HIGH, BROKEN = 0.5, 0.9
"""Mean score from which a constant answer is worth a warning, and from which the environment teaches nothing."""
ALIKE = 0.05
CONTESTS = 4
FEW = 16
SCALE = 1.0
"""Largest reward up to which a mean score counts as a share of the possible one."""
LARGE = 100.0
AGAIN = 8
SANDBOX = "sandbox_timeouts"
_MOST_NAMED, _AGENTS_NAMED = 4, 8


async def reply_junk(subject: Subject, indices: Sequence[int], tools: bool, pace: Pace, share: float) -> list[Played]:
    """Give every odd reply to a few instances; one that has failed is not tried again."""
    played: list[Played] = []
    replies = (*JUNK, WRONG_CALL) if tools else JUNK
    async for index, reply in pace.take(product(indices[:JUNK_INSTANCES], replies), share):
        if reply not in failing(played):
            played.append(await play(subject, index, reply, pace))
    return played


def failing(played: Collection[Played]) -> frozenset[Canned]:
    """The replies that ended an episode without a reward."""
    return frozenset(one.reply for one in played if one.score is None)


def check_junk(played: Sequence[Played], name: str = "NAME") -> list[Finding]:
    """The episode ends in time and with a finite reward after any reply. One finding for each kind of failure."""
    number = len({one.reply for one in played})
    failures = [one.outcome.failure for one in played if one.outcome is not None and one.outcome.failure is not None]
    if played and len(failures) == len(played) and len({(one.file, one.line) for one in failures}) == 1:
        words = {"number": number, "reason": said(failures[0]), "decorator": _decorator(name)}
        if SIGNALS in failures[0].message:
            return [finding("junk.alarm", **words)]
        if not {"timeout", "skip"} & {one.status for one in played}:
            return [finding("junk.always" if failing(played) else "junk.paid", **words)]
    ways: dict[tuple[object, ...], list[Played]] = {}
    for one in played:
        if one.score is None:  # the message may quote the reply
            failure = one.outcome.failure if one.outcome is not None else None
            place = (failure.file, failure.line, failure.message.partition(":")[0]) if failure else ()
            ways.setdefault((one.status, *place), []).append(one)
    if played and not ways:
        return [finding("junk.survived", number=number)]
    found = []
    for alike in ways.values():
        outcome, labels = alike[0].outcome, list(dict.fromkeys(one.reply.label for one in alike))
        reason = said(outcome.failure) if outcome is not None and outcome.failure else "without a word"
        case = alike[0].status if alike[0].status in ("endless", "timeout", "skip") else "error"
        found.append(finding(f"junk.{case}", replies=_named(labels), reason=reason, most=MOST_TURNS))
    return found


def _named(labels: Sequence[str]) -> str:
    if len(labels) <= _MOST_NAMED:
        return " or ".join(labels)
    return f"{', '.join(labels[: _MOST_NAMED - 1])} or {len(labels) - _MOST_NAMED + 1} others"


async def reply_constants(
    subject: Subject, indices: Sequence[int], without: Collection[Canned], pace: Pace, share: float
) -> list[Played]:
    """Give every constant answer, except those ``without`` a reward, to each instance."""
    plan = product(indices, [reply for reply in CONSTANTS if reply not in without])
    return [await play(subject, index, reply, pace) async for index, reply in pace.take(plan, share)]


async def contests(subject: Subject, indices: Sequence[int], pace: Pace, share: float) -> list[Played]:
    """Let agents give different answers: with equal ones a game may always be drawn."""
    plan = product(indices[:CONTESTS], permutations(CONSTANTS[:4], 2))
    return [await play(subject, index, one, pace, other) async for index, (one, other) in pace.take(plan, share)]


def constants(played: Sequence[Played]) -> list[tuple[float, Canned, int]]:
    """The mean score and number of instances of each constant answer, best first; of equal ones the first."""
    by_reply = [(reply, [one.score for one in played if one.reply == reply]) for reply in CONSTANTS]
    scores = [(reply, [score for score in some if score is not None]) for reply, some in by_reply]
    means = [(math.fsum(some) / len(some), reply, len(some)) for reply, some in scores if some]
    return sorted(means, key=lambda mean: -mean[0])


def check_baseline(played: Sequence[Played], ranked: bool = False, contested: Sequence[Played] = ()) -> list[Finding]:
    """Rewards need the prompt.

    A policy that scores no higher than the best constant answer has learned only that. Not so for agents that play
    against each other: one always wins. ``ranked``: a ranking replaces these rewards in training. ``contested``:
    episodes in which agents gave different answers.
    """
    means = constants(played)
    if not means:
        return []
    rewards = {tuple(one.rewards.values()) for one in (*played, *contested) if one.rewards}
    totals = [math.fsum(some) for some in rewards]
    changes = len(rewards) > 1 and any(max(some) > min(some) for some in rewards)
    if changes and all(math.isclose(total, totals[0], abs_tol=1e-9) for total in totals):
        return [finding("baseline.game", total=totals[0])]
    mean, reply, instances = means[0]
    scores = [one.score for one in played if one.score is not None]
    if len(means) > 1 and not any(scores):
        return [finding("baseline.nothing", number=len(means))]
    answer, many = reply.label[0].upper() + reply.label[1:], f"{instances} instance{'' if instances == 1 else 's'}"
    if mean < HIGH or instances < FEW:
        return [finding("baseline.low", answer=answer, mean=mean, many=many, number=len(means))]
    as_good = sum(other >= mean - ALIKE for other, _, _ in means) - 1
    others = f" {as_good} of {len(means) - 1} other constant answers do as well." if as_good else ""
    others += " In training the group's ranking counts instead." if ranked else ""
    level: Level = "error" if mean >= BROKEN and max(map(abs, scores)) <= SCALE and not ranked else "warning"
    return [finding("baseline.high", level, answer=answer, mean=mean, many=many, others=others)]


async def reply_again(
    subject: Subject, played: Sequence[Played], pace: Pace, share: float
) -> list[tuple[Played, Played]]:
    """Run some episodes again with the same replies; returns pairs."""
    chosen = [one for one in played if one.score is not None][:: max(1, len(played) // AGAIN)]
    return [(one, await play(subject, one.index, one.reply, pace)) async for one in pace.take(chosen, share)]


def check_rewards(
    played: Sequence[Played], repeated: Sequence[tuple[Played, Played]], ranked: bool = False
) -> list[Finding]:
    """Rewards have a usable size, the same reply earns the same, and unreadable replies do not pay."""
    rewards = [reward for one in played for reward in one.rewards.values()]
    if not rewards:
        return []
    low, high = min(rewards), max(rewards)
    words = {"low": low, "high": high, "mean": statistics.fmean(rewards), "deviation": statistics.pstdev(rewards)}
    found = [finding("rewards.large" if max(-low, high) > LARGE else "rewards.range", **words)]
    least: dict[int, tuple[float, Played]] = {}
    unreadable: list[tuple[float, Played]] = []
    for one in played:
        if one.score is not None and one.outcome is not None:
            if one.outcome.invalid:
                unreadable.append((one.score, one))
            elif one.index not in least or one.score < least[one.index][0]:
                least[one.index] = one.score, one
    paid = [(s, one, *least[one.index]) for s, one in unreadable if one.index in least and s > least[one.index][0]]
    if paid and not ranked:
        score, one, worst, other = paid[0]
        replies = {"index": one.index, "reply": one.reply.label, "other": other.reply.label}
        found.append(finding("rewards.nonsense", score=score, least=worst, **replies))
    changed = [(one, again) for one, again in repeated if again.rewards and again.rewards != one.rewards]
    if changed:
        one, again = changed[0]
        words = {"number": len(changed), "tried": len(repeated), "index": one.index}
        both = {"reply": one.reply.label, "first": _earned(one), "second": _earned(again)}
        found.append(finding("rewards.changed", **words, **both))
    return found


def _earned(one: Played) -> str:
    if len(one.rewards) == 1:
        return f"{one.score:.3g}"
    return ", ".join(f"{reward:.3g} ({agent})" for agent, reward in one.rewards.items())


def check_agents(played: Sequence[Played], declared: Sequence[str]) -> list[Finding]:
    """The agents that are asked are the declared ones; an undeclared one fails its episode."""
    asked = frozenset[str]().union(*(one.agents for one in played))
    if not declared:
        names = ", ".join(f'"{name}"' for name in sorted(asked)[:_AGENTS_NAMED])
        return [finding("agents.undeclared", number=len(asked), names=names)] if len(asked) > 1 else []
    silent = [name for name in declared if name not in asked]
    if not silent:
        return [finding("agents.asked", number=len(declared), names=_listed(declared))]
    return [finding("agents.silent", names=_listed(silent), number=len(played))] if len(played) >= FEW else []


def _listed(names: Sequence[str]) -> str:
    more = f" and {len(names) - _AGENTS_NAMED} others" if len(names) > _AGENTS_NAMED else ""
    return ", ".join(names[:_AGENTS_NAMED]) + more


def check_sandbox(played: Sequence[Played]) -> list[Finding]:
    """Programs in the sandbox end in time. Canned replies ask for no work, so the environment's own part is late."""
    used = [(one, one.outcome.metrics[SANDBOX]) for one in played if one.outcome and SANDBOX in one.outcome.metrics]
    late = [one for one, timeouts in used if timeouts]
    words = {"late": len(late), "used": len(used)}
    return [finding("sandbox.late", **words, index=one.index, reply=one.reply.label) for one in late[:1]]


# Speed: many episodes at once, the work after the last reply, the time of a turn.

SHORT = 0.003
"""Seconds an episode below which a blocking line does not matter: about the time to start an episode."""
LONG = 1.0
"""Seconds that all live episodes may wait for each other in one process before a warning."""
GRADING = 1 / 3
"""Share of an episode's own time after its last reply from which a score function pays."""
SLOW_TURN, SLOWEST_TURN, SLOW_START = 1.0, 5.0, 10.0
"""Seconds of the median turn, of the longest one, and of the start, from which an environment is slow."""
_MOST_PLACES = 3
ALIVE = TrainSpec().groups_per_step * TrainSpec().begun_members * (TrainSpec().max_staleness + 1)


@dataclass(frozen=True)
class Crowd:
    """Episodes that ran at once, of instances that end well without others."""

    played: tuple[Played, ...] = ()
    seconds: float = 0.0
    places: tuple[Place, ...] = ()
    unfinished: int = 0
    alone: float = 0.0


async def run_crowd(subject: Subject, alone: Sequence[Played], most: int, pace: Pace) -> Crowd:
    """Run ``most`` episodes at once; none if all of those in ``alone`` failed.

    They get the remaining time plus that of one episode without others; then they are cancelled.
    """
    well = [one for one in alone if one.score is not None]
    same = [one for one in well if one.reply == well[0].reply]
    if not same or most < 2:
        return Crowd()
    longest = max(math.fsum(one.turns) for one in same)
    await subject.watch()
    began = pace.clock()
    tasks = [
        asyncio.ensure_future(play(subject, same[place % len(same)].index, same[0].reply, pace))
        for place in range(most)
    ]
    try:
        await asyncio.wait(tasks, timeout=pace.left + longest)
        seconds, places = pace.clock() - began, await subject.watched()
        played = tuple(task.result() for task in tasks if task.done())
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    return Crowd(played, seconds, places, most - len(played), longest)


def check_crowd(crowd: Crowd, alive: int) -> list[Finding]:
    """Many episodes at once end as one does, and no line blocks their process. ``alive``: episodes of a task.

    A line that computes or sleeps without an await holds up all other episodes of the event loop.
    """
    number, found = len(crowd.played) + crowd.unfinished, []
    failed = [one for one in crowd.played if one.score is None and one.status != "skip"]
    if failed:
        failure = failed[0].outcome.failure if failed[0].outcome is not None else None
        reason = said(failure) if failure is not None else failed[0].status
        found.append(finding("concurrency.failed", failed=len(failed), number=len(crowd.played), reason=reason))
    for place in crowd.places[:_MOST_PLACES]:
        shared = place.seconds / max(1, len(crowd.played))
        each = min(shared, crowd.alone) if crowd.unfinished else place.seconds / number
        if each >= SHORT:
            words = {"place": f"at {place.file}:{place.line}" if place.file else "in its library", "number": number}
            times = {"each": each, "all": number * each, "half": number * each / 2, "total": alive * each}
            slow = alive * each >= LONG
            advice = (
                " Await what waits; what computes keeps nobody waiting in asyncio.to_thread, or in a score function."
            )
            spoken = {name: _spoken(seconds) for name, seconds in times.items()}
            level: Level = "warning" if slow else "note"
            words |= spoken | {"alive": alive, "advice": advice if slow else ""}
            found.append(finding("concurrency.blocks", level, **words))
    ends = {"number": number, "seconds": _spoken(crowd.seconds), "alone": _spoken(crowd.alone)}
    if crowd.unfinished:
        found.append(finding(f"concurrency.{'ended' if found else 'waits'}", ended=len(crowd.played), **ends))
    elif number and not found:
        found.append(finding("concurrency.well", **ends))
    return found


def check_grading(played: Sequence[Played], name: str, alive: int) -> list[Finding]:
    """Work after the last reply, while others wait, could be done in a score function.

    RollArt (arXiv 2512.22560) separates rewards from rollouts for the same reason.
    """
    ended = [one.turns for one in played if one.score is not None and len(one.turns) > 1]
    if not ended:
        return []
    after, own = statistics.median(turns[-1] for turns in ended), statistics.median(map(math.fsum, ended))
    if after < SHORT or after * alive < LONG or after < GRADING * own:
        return []
    return [finding("grading.move", own=_spoken(own), after=_spoken(after), decorator=_decorator(name))]


def check_latency(start: float, first: float, turns: Sequence[float]) -> list[Finding]:
    """The model need not wait for the environment. Seconds until the process served, to the first prompt, of turns."""
    slow = " Every edit and every restart waits for that; load less, or load it when it is first needed."
    late = start + first > SLOW_START
    words = {"start": _spoken(start), "first": _spoken(first), "advice": slow if late else ""}
    found = [finding("latency.start", "warning" if late else "note", **words)]
    if turns:
        middle, worst = statistics.median(turns), max(turns)
        late = middle > SLOW_TURN or worst > SLOWEST_TURN
        slow = " Every episode waits for that at every turn: do less in it, or prepare it in setup."
        words = {"middle": _spoken(middle), "worst": _spoken(worst), "advice": slow if late else ""}
        found.append(finding("latency.turn", "warning" if late else "note", number=len(turns), **words))
    return found


def _of(number: int, every: Sequence[object]) -> str:
    return f"{number} of {len(every)} instances"


def _decorator(name: str) -> str:
    return f"@{name}.score" if name.isidentifier() else "@NAME.score"


def _spoken(seconds: float) -> str:
    return f"{seconds:.1f} s" if seconds >= 1 else f"{1000 * seconds:.{0 if seconds >= 0.01 or not seconds else 1}f} ms"
