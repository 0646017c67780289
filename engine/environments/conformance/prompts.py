"""Checks of instances and their first prompts: repeatable, different, held out, short enough."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from hashlib import sha256
from typing import Protocol

from marlaas.plugins.messages import Ask

from ...errors import EnvironmentFailure, MarlaasError
from ...trajectories import Split
from ..lease import Lease
from ..plugin import said
from ..probe import first_ask
from ..protocol import DataFacts, EpisodeOutcome
from .finding import Finding
from .subject import Pace, Subject, instance

# Instances played up to their first ask, or their end without one, and the seconds until then. Needs no model.

HOPELESS = 4
"""Draws that fail, with none that succeeds, after which no further ones are made."""
MOST_CHARACTERS = 16 << 20
"""Most characters of all first prompts together that are kept in memory."""


@dataclass(frozen=True)
class Draw:
    """An instance that was drawn."""

    split: Split
    index: int
    reached: Ask | EpisodeOutcome
    seconds: float = 0.0
    """Time until its first ask, or its end."""

    @cached_property
    def prompt(self) -> str | None:
        """A hash of its first prompt, messages and tools without the agent's name; None without a prompt."""
        if not isinstance(self.reached, Ask) or not self.reached.messages:  # its programs ask, elsewhere
            return None
        said = [(message.role, message.content, message.name) for message in self.reached.messages]
        return sha256(json.dumps([said, self.reached.tools], sort_keys=True).encode()).hexdigest()

    @property
    def characters(self) -> int:
        """Number of characters of its first prompt."""
        return sum(len(message.content) for message in self.reached.messages) if isinstance(self.reached, Ask) else 0

    @property
    def place(self) -> str:
        """The instance in words."""
        return f"{self.split} instance {self.index}"


async def draw(subject: Subject, split: Split, index: int, pace: Pace, member: int = 0) -> Draw:
    """Play one instance up to its first ask."""
    began = pace.clock()
    reached = await first_ask(subject.play, instance(subject, split, index, member))
    return Draw(split, index, reached, pace.clock() - began)


async def draws(subject: Subject, instances: Iterable[tuple[Split, int]], pace: Pace, share: float) -> list[Draw]:
    """Draw instances until the ``share`` of the time is used up; few where none has a prompt."""
    made: list[Draw] = []
    async for split, index in pace.take(instances, share):
        made.append(await draw(subject, split, index, pace))
        if len(made) >= HOPELESS and all(one.prompt is None for one in made):
            break
        if sum(one.characters for one in made) >= MOST_CHARACTERS:
            break
    return made


# Check: instances can be drawn, and reach a first prompt.

CHECK_INSTANCES = "instances"
MOST_SKIPPED = 0.5


def judge_instances(draws: Sequence[Draw]) -> list[Finding]:
    """Errors, time limits, skipped draws, and episodes that never ask."""
    ended = [(draw, draw.reached) for draw in draws if isinstance(draw.reached, EpisodeOutcome)]
    failed = [(draw, outcome) for draw, outcome in ended if outcome.status not in ("ok", "skip")]
    silent = [draw for draw, outcome in ended if outcome.status == "ok"]
    skipped = [draw for draw, outcome in ended if outcome.status == "skip"]
    findings = []
    if failed:
        draw, outcome = failed[0]
        reason = said(outcome.failure) if outcome.failure else f"it ended as {outcome.status}"
        findings.append(
            Finding(
                CHECK_INSTANCES,
                "error",
                f"{_of(failed, draws)} have no first prompt: {draw.place} ends before it: {reason}.",
            )
        )
    if silent and len(silent) + len(skipped) == len(draws):
        text = f"It never calls `ep.ask`: {_of(silent, draws)} end without it. Nothing can be learned from that."
        findings.append(Finding(CHECK_INSTANCES, "error", text))
    elif silent:
        findings.append(
            Finding(
                CHECK_INSTANCES,
                "warning",
                f"{_of(silent, draws)} end without asking the model, such as {silent[0].place}: nothing is learned from"
                " them. Raise Skip where a draw is unusable.",
            )
        )
    if skipped:
        many = len(skipped) > MOST_SKIPPED * len(draws)
        findings.append(
            Finding(
                CHECK_INSTANCES, "warning" if many else "note", f"{_of(skipped, draws)} are skipped by the environment."
            )
        )
    return findings


def _of(some: Sequence[object], draws: Sequence[Draw]) -> str:
    return f"{len(some)} of {len(draws)} instances"


# Check: an instance is the same each time, in every process and for every member of a group.
#
# The advantage of an answer is its reward minus that of other answers to the same prompt; and a run that goes on
# draws its instances anew.

CHECK_DETERMINISM = "determinism"
INSTANCES = 5
"""Instances of each split that are drawn again."""
_SHOWN = 24
_BEFORE = 8

_AGAIN = (
    "changes when it is drawn again",
    "Draw from ep.rng alone, not from the module random, the time, or what earlier episodes left behind.",
)
_ELSEWHERE = (
    "changes in another process",
    "Draw from ep.rng alone: a process may begin with any instance, and forgets what the one before it knew.",
)
_NEIGHBOUR = (
    "differs between the members of a group",
    "Draw the task from ep.rng, which they share; ep.noise is for what happens after the first prompt.",
)


@dataclass(frozen=True)
class Repeats:
    """One instance, drawn four times."""

    first: Draw
    again: Draw
    """In the same process."""
    elsewhere: Draw
    """In a fresh process, and in another order."""
    neighbour: Draw
    """In the fresh process, by another member of the group."""


async def observe_determinism(subject: Subject, seen: Sequence[Draw], pace: Pace, share: float) -> list[Repeats]:
    """Draw some instances that had a first prompt again; the subject then has a fresh process."""
    chosen = [one for split in ("train", "eval") for one in _some(seen, split)]
    again = [await draw(subject, one.split, one.index, pace) async for one in pace.take(chosen, share)]
    await subject.renew()
    repeats = []
    async for first, second in pace.take(reversed(list(zip(chosen, again, strict=False))), share):
        elsewhere = await draw(subject, first.split, first.index, pace)
        neighbour = await draw(subject, first.split, first.index, pace, member=1)
        repeats.append(Repeats(first, second, elsewhere, neighbour))
    return repeats[::-1]


def judge_determinism(repeats: Sequence[Repeats]) -> list[Finding]:
    """One error for each way in which instances change."""
    findings = []
    told: set[int] = set()  # what changes in one process changes in the next, and is reported once
    for (what, cure), pairs in (
        (_AGAIN, [(one.first, one.again) for one in repeats]),
        (_ELSEWHERE, [(one.first, one.elsewhere) for one in repeats]),
        (_NEIGHBOUR, [(one.elsewhere, one.neighbour) for one in repeats]),
    ):
        changed = [place for place, (one, other) in enumerate(pairs) if place not in told and _differ(one, other)]
        told.update(changed)
        if changed:
            one, other = pairs[changed[0]]
            findings.append(
                Finding(
                    CHECK_DETERMINISM,
                    "error",
                    f"The first prompt of {one.place} {what}: {_contrast(one, other)}."
                    f" {len(changed)} of {len(repeats)} instances do that. {cure}",
                )
            )
    if repeats and not findings:
        text = f"{len(repeats)} instances had the same first prompt again, in another process, and for another member."
        findings.append(Finding(CHECK_DETERMINISM, "note", text))
    return findings


def _some(seen: Sequence[Draw], split: str) -> list[Draw]:
    return [one for one in seen if one.split == split and one.prompt is not None][:INSTANCES]


def _differ(one: Draw, other: Draw) -> bool:
    return isinstance(one.reached, Ask) and one.reached != other.reached


def _contrast(one: Draw, other: Draw) -> str:
    """Both texts around the place where they begin to differ."""
    if isinstance(other.reached, EpisodeOutcome):
        failure = other.reached.failure
        return f"it has none then ({said(failure) if failure else other.reached.status})"
    first, second = _text(one), _text(other)
    if first == second:
        return "its tools, limits or agent differ"
    pairs = zip(first, second, strict=False)
    same = next((place for place, (a, b) in enumerate(pairs) if a != b), min(len(first), len(second)))
    start = max(0, same - _BEFORE)
    dots = "…" if start else ""
    return f"{dots + first[start : start + _SHOWN]!r}, then {dots + second[start : start + _SHOWN]!r}"


def _text(one: Draw) -> str:
    ask = one.reached
    return "\n".join(message.content for message in ask.messages) if isinstance(ask, Ask) else ""


# Check: different instances have different first prompts.

CHECK_VARIETY = "variety"
ENOUGH = 8
"""Prompts of a split below which equal ones mean nothing."""
CHANCE = 0.25
"""Share of repeated prompts up to which they are chance: 64 draws from 441 sums repeat a fifteenth of them. Evaluation
measures each prompt once, so that they cost a little precision only."""


def judge_variety(draws: Sequence[Draw]) -> list[Finding]:
    """A warning for splits whose prompts are all the same, or of which eval repeats many; else how many differ."""
    alike, shares, repeated = [], [], []
    for split in ("train", "eval"):
        prompts = [draw.prompt for draw in draws if draw.split == split and draw.prompt is not None]
        distinct = len(set(prompts))
        if distinct == 1 and len(prompts) >= ENOUGH:
            alike.append(f"all {len(prompts)} {split} prompts")
        elif split == "eval" and distinct < (1.0 - CHANCE) * len(prompts) and len(prompts) >= ENOUGH:
            repeated.append(f"Only {distinct} of {len(prompts)} eval prompts differ")
        elif prompts:
            shares.append(f"{distinct} of {len(prompts)} {split} prompts")
    findings = []
    if alike:
        text = " and ".join(alike).replace("all", "All", 1)
        advice = "That is right for a game that always opens alike; else draw the task from ep.rng."
        findings.append(Finding(CHECK_VARIETY, "warning", f"{text} are the same. {advice}"))
    for text in repeated:
        advice = "what is asked again tells nothing new. Evaluate no more prompts than there are, or draw from more."
        findings.append(Finding(CHECK_VARIETY, "warning", f"{text}: {advice}"))
    if shares:
        findings.append(Finding(CHECK_VARIETY, "note", f"{' and '.join(shares)} differ."))
    return findings


# Check: the two splits do not share instances.
#
# Training leaves out every prompt that is also held out, so a few shared ones cost nothing. Where many are shared,
# the space of prompts is too small; where they are shared in order, both splits are one sequence, entered at two
# places: that is what seeding with ``seed + index`` does.

CHECK_LEAKS = "leaks"
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


def judge_leaks(train: Sequence[Draw], held_out: Sequence[Draw], distant: Sequence[Draw] = ()) -> list[Finding]:
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
        return [Finding(CHECK_LEAKS, "warning", f"{text}: evaluation measures what was trained on.")]
    if shared > MOST_SHARED * len(drawn):
        advice = "the space of prompts is too small. Training skips them; settings that make it larger are better."
        return [Finding(CHECK_LEAKS, "warning", f"{text}: {advice}")]
    if shared:
        return [Finding(CHECK_LEAKS, "note", f"{text}; training skips them.")]
    return [Finding(CHECK_LEAKS, "note", f"None of {len(drawn)} train prompts is one of {len(places)} held-out ones.")]


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
        CHECK_LEAKS,
        "error",
        f"The eval split is the train split{by}: {draw.place} has the first prompt of eval instance {index}, and so on."
        " Draw from ep.rng, which keeps the splits apart, or take ep.split into the seed.",
    )


# Check: first prompts leave room for an answer. Lengths are in tokens, or without a ruler in characters.

CHECK_LENGTHS = "lengths"
CROWDED = 0.75
"""Share of the context from which a prompt leaves little room."""


class Ruler(Protocol):
    """Counts the tokens of prompts as the trained base does."""

    @property
    def context(self) -> int:
        """Tokens that a conversation may grow to."""

    async def tokens(self, ask: Ask) -> int:
        """Tokens of a first prompt; for one that is much too long, a lower bound.

        Raises ``ValueError`` or ``BaseModelError`` where the base's template refuses it."""


@dataclass(frozen=True)
class Lengths:
    """The lengths of first prompts."""

    by_draw: tuple[tuple[Draw, int], ...]
    context: int | None
    """None: the lengths are characters."""
    refused: tuple[Draw, str] | None = None
    """The first prompt that the base's template refuses, and why."""


async def observe_lengths(draws: Sequence[Draw], ruler: Ruler | None, pace: Pace, share: float) -> Lengths:
    """Measure the first prompts."""
    found: list[tuple[Draw, int]] = []
    refused = None
    asked = [(draw, draw.reached) for draw in draws if isinstance(draw.reached, Ask)]
    async for draw, ask in pace.take(asked, share):
        try:
            found.append((draw, await ruler.tokens(ask) if ruler else sum(len(said.content) for said in ask.messages)))
        except (ValueError, MarlaasError) as error:
            refused = refused or (draw, str(error))
    return Lengths(tuple(found), ruler.context if ruler else None, refused)


def judge_lengths(lengths: Lengths) -> list[Finding]:
    """Errors for prompts that cannot be put to the base, a warning for those that leave little room."""
    findings = []
    if lengths.refused:
        draw, reason = lengths.refused
        text = f"The first prompt of {draw.place} cannot be put to the base model: {reason}"
        findings.append(Finding(CHECK_LENGTHS, "error", text))
    if not lengths.by_draw:
        return findings
    draw, longest = max(lengths.by_draw, key=lambda pair: pair[1])
    mean = math.fsum(length for _, length in lengths.by_draw) / len(lengths.by_draw)
    unit = "characters" if lengths.context is None else "tokens"
    text = f"First prompts have {mean:,.0f} {unit} on average, at most {longest:,}"
    if lengths.context is None:
        return [*findings, Finding(CHECK_LENGTHS, "note", f"{text}; no base was there to count tokens.")]
    text = f"{text} ({draw.place}); a conversation has room for {lengths.context:,}"
    if longest >= lengths.context:
        findings.append(
            Finding(CHECK_LENGTHS, "error", f"{text}. Say less at once, or give the base a larger context.")
        )
    elif longest > CROWDED * lengths.context:
        findings.append(Finding(CHECK_LENGTHS, "warning", f"{text}, and little of it is left for answers."))
    else:
        findings.append(Finding(CHECK_LENGTHS, "note", f"{text}."))
    return findings


# Check: rows of data are different from each other, and those to evaluate with are not trained on.
#
# ``judge`` needs nothing but what ``EnvironmentService.facts`` found with ``survey=True``.

CHECK_ROWS = "rows"


async def observe_rows(lease: Lease) -> DataFacts:
    """What is in the rows that a lease draws from; nothing where they cannot be had, which the episodes say."""
    try:
        return await lease.serving.facts(lease.declared.name, lease.data, survey=True)
    except EnvironmentFailure:
        return DataFacts()


def judge_rows(facts: DataFacts) -> list[Finding]:
    """Warnings for evaluation rows that are copies or are trained on; notes on how many rows there are and how they
    lie."""
    survey = facts.survey
    if survey is None:
        return []
    said = [f"{facts.train:,} rows to train on, {facts.held_out:,} to evaluate with."]
    for column, values in survey.blocks.items():
        said.append(f"They lie sorted by {column!r} ({values:,} values); each epoch shuffles them.")
    found = [Finding(CHECK_ROWS, "note", " ".join(said))]
    if survey.shared:
        text = f"{survey.shared:,} evaluation rows are train rows, too: a score measures what was learned by heart."
        found.append(Finding(CHECK_ROWS, "warning", f"{text} Take them out of one of the two."))
    if survey.repeated:
        text = f"{survey.repeated:,} evaluation rows are copies of another one, so a score says less than its number."
        found.append(Finding(CHECK_ROWS, "warning", text))
    return found
