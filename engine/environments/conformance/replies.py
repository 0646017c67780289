"""Checks of what replies earn: odd ones end in time, constant ones earn little, agents are those declared."""

from __future__ import annotations

import math
import statistics
from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from itertools import permutations, product

from marlaas.plugins.messages import Ask, Reply, ToolCall

from ..plugin import said
from ..protocol import EpisodeOutcome
from .finding import Finding, Level
from .subject import Pace, Subject, instance

# Canned replies, such as an untrained, a collapsed or a cheating policy gives.
#
# Every environment must survive ``JUNK``; ``CONSTANTS`` are tried as answers to everything, for the best of their
# scores is what a policy gets without reading.

_LONGEST_TOKEN = 8
"""Characters for each token that an environment allows."""


@dataclass(frozen=True)
class Canned:
    """One reply to every ask."""

    label: str
    """How a sentence names it."""
    text: str
    calls: bool = False
    """Whether it calls the first tool, with an argument that no tool has."""

    def reply(self, ask: Ask, turn: int) -> Reply:
        """The reply to ``ask``, up to its stops and its limit; an agent's tools are named in its first ask."""
        if self.calls:
            name = str(ask.tools[0].get("function", {}).get("name", "tool")) if ask.tools else "tool"
            return Reply("", "tool", turn, (ToolCall(name, {"": [None]}),))
        text = self.text
        for stop in ask.stop:
            text = text.partition(stop)[0] if stop else text
        longest = len(text) if ask.max_tokens is None else ask.max_tokens * _LONGEST_TOKEN
        return Reply(text[:longest], "stop" if len(text) <= longest else "length", turn)


def _answer(text: str) -> Canned:
    return Canned(f"the answer '{text}'", text)


EMPTY = Canned("the empty reply", "")

CONSTANTS = (
    EMPTY,
    *map(_answer, ("0", "1", "None", "False", "True", "yes", "no", "A")),
    Canned("the answer of 50 'a'", "a" * 50),
    Canned("the list of all numbers to 999", " ".join(map(str, range(1000)))),
    *map(_answer, ("<answer>0</answer>", "\\boxed{0}")),
)

JUNK = (
    *CONSTANTS,
    *map(_answer, ("NaN", "1e999", "²")),
    Canned("a reply of 20,000 characters", "word " * 4_000),
    Canned("a number of 5,000 digits", "9" * 5_000),
    Canned("5,000 open brackets", "[" * 5_000),
    Canned("control characters and rare Unicode", "\x00\x1b[2J\u202e\ufeff\u0661\U0001f9ea\u0301\n\t\r\x7f"),
    Canned("an unclosed tool call", '<tool_call>{"name": "x", "arguments": {'),
)

WRONG_CALL = Canned("a tool call with a wrong argument", "", calls=True)
"""For environments that offer tools: without any, what a model says is never a call."""


# Whole episodes with canned replies, and the time that the environment itself takes in them.

MOST_TURNS = 1000
"""Most turns of one episode: a real one has used up its context by then."""


@dataclass(frozen=True)
class Played:
    """An episode of one train instance with one canned reply."""

    reply: Canned
    index: int
    outcome: EpisodeOutcome | None
    """None where it asked once more after as many turns as it was to have."""
    turns: tuple[float, ...] = ()
    """Seconds that the environment itself took before each ask, and before the end."""
    agents: frozenset[str] = frozenset()
    """The agents that were asked."""

    @property
    def rewards(self) -> dict[str, float]:
        """Rewards by agent; empty where there are none."""
        return self.outcome.rewards if self.outcome is not None else {}

    @property
    def score(self) -> float | None:
        """Mean of the agents' rewards, where there are any."""
        return math.fsum(self.rewards.values()) / len(self.rewards) if self.rewards else None


class _Endless(Exception):
    """The episode has had as many turns as it was to have."""


async def play(
    subject: Subject, index: int, reply: Canned, pace: Pace, others: Canned | None = None, most: int = MOST_TURNS
) -> Played:
    """Play it to its end, or until it has had ``most`` replies; all but the first agent that is asked say ``others``,
    if given."""
    turns: list[float] = []
    replies: Counter[tuple[str, int]] = Counter()  # by conversation, each of which counts its own
    resumed = pace.clock()

    async def answer(ask: Ask) -> Reply:
        nonlocal resumed
        turns.append(pace.clock() - resumed)
        if len(turns) > most:
            raise _Endless
        place = ask.agent, ask.branch
        if ask.fork is not None:
            replies[place] = ask.fork.turns
        first = next(iter(replies), place)[0]
        said = (others if others and ask.agent != first else reply).reply(ask, replies[place])
        replies[place] += 1
        resumed = pace.clock()
        return said

    def asked() -> frozenset[str]:
        return frozenset(agent for agent, _ in replies)

    try:
        outcome = await subject.play(instance(subject, "train", index), answer)
    except _Endless:
        return Played(reply, index, None, tuple(turns), asked())
    return Played(reply, index, outcome, (*turns, pace.clock() - resumed), asked())


# Check: whatever the model says, the episode ends in time and with a finite reward.

CHECK_JUNK = "junk"
INSTANCES = 3
SIGNALS = "signal only works in main thread"
"""What Python says to ``signal.alarm`` and its like elsewhere."""
COMPARED = "compare reply.text"
"""What a ``Reply`` says that is compared with a text."""
_MOST_NAMED = 4


async def observe_junk(subject: Subject, indices: Sequence[int], tools: bool, pace: Pace, share: float) -> list[Played]:
    """Give every reply to a few instances; one that has failed is not tried again."""
    replies = (*JUNK, WRONG_CALL) if tools else JUNK
    played: list[Played] = []
    async for index, reply in pace.take(product(indices[:INSTANCES], replies), share):
        if reply not in failing(played):
            played.append(await play(subject, index, reply, pace))
    return played


def failing(played: Iterable[Played]) -> frozenset[Canned]:
    """The replies that ended an episode without a reward."""
    return frozenset(one.reply for one in played if one.score is None)


def judge_junk(played: Sequence[Played], name: str = "NAME") -> list[Finding]:
    """One finding for each way to fail. ``name``: of the environment."""
    if always := _always(played, name):
        return [always]
    ways: dict[tuple[object, ...], list[Played]] = {}
    for one in played:
        if one.score is None:
            ways.setdefault(_way(one), []).append(one)
    if played and not ways:
        text = f"{len({one.reply for one in played})} odd replies ended in time, and with a reward."
        return [Finding(CHECK_JUNK, "note", text)]
    return [_finding(alike[0].outcome, _named([one.reply for one in alike])) for alike in ways.values()]


def _always(played: Sequence[Played], name: str) -> Finding | None:
    """A failure in the same place for every reply, where a reward is paid for it or no reply can be to blame."""
    failures = [one.outcome.failure for one in played if one.outcome is not None and one.outcome.failure is not None]
    if not played or len(failures) < len(played) or len({(one.file, one.line) for one in failures}) > 1:
        return None
    text = (
        f"It fails for each of the {len({one.reply for one in played})} replies that were tried: {said(failures[0])}."
    )
    if SIGNALS in failures[0].message:
        decorator = f"@{name}.score" if name.isidentifier() else "@NAME.score"
        text += (
            f" A plain `def` plays in a thread, where Python takes no signals: move what sets an alarm into a function"
            f" under {decorator}, which runs in a process of its own."
        )
        return Finding(CHECK_JUNK, "error", text)
    if COMPARED in failures[0].message:
        return Finding(CHECK_JUNK, "error", text)
    if any(one.outcome is not None and one.outcome.status in ("timeout", "skip") for one in played):
        return None
    if any(one.score is None for one in played):
        text += (
            " If a right reply fails there, too, the environment is wrong; give a bad one a reward, or raise Invalid."
        )
        return Finding(CHECK_JUNK, "error", text)
    return Finding(
        CHECK_JUNK, "warning", f"{text} `on_error` pays all of them alike: try whether a right reply earns more."
    )


def _way(one: Played) -> tuple[object, ...]:
    """A key that is equal for episodes that fail alike; without the message, which may quote the reply."""
    if one.outcome is None or one.outcome.failure is None:
        return (one.outcome is None or one.outcome.status,)
    failure = one.outcome.failure
    return one.outcome.status, failure.file, failure.line, failure.message.partition(":")[0]


def _finding(outcome: EpisodeOutcome | None, replies: str) -> Finding:
    detail = said(outcome.failure) if outcome is not None and outcome.failure else "without a word"
    match outcome.status if outcome is not None else "endless":
        case "endless":
            text = f"Given {replies}, it asks more than {MOST_TURNS:,} times. Bound the turns of an episode."
        case "timeout":
            text = f"Given {replies}, it ends too late: {detail}. Bound the work that a reply can cause."
        case "skip":
            text = f"Given {replies}, it raises Skip: the reply costs nothing. Skip is for unusable draws;"
            return Finding(CHECK_JUNK, "warning", f"{text} a bad reply is Invalid, which has a reward.")
        case _:
            text = f"Given {replies}, it fails: {detail}. A model says anything: give such a reply a reward,"
            text += " or raise Invalid."
    return Finding(CHECK_JUNK, "error", text)


def _named(replies: Sequence[Canned]) -> str:
    """The labels of the first few replies, and how many others there are."""
    labels = list(dict.fromkeys(reply.label for reply in replies))
    if len(labels) <= _MOST_NAMED:
        return " or ".join(labels)
    return f"{', '.join(labels[: _MOST_NAMED - 1])} or {len(labels) - _MOST_NAMED + 1} others"


# Check: rewards cannot be had without reading the prompt.
#
# Each constant answer is given to many instances; the best of their mean scores is the constant-answer baseline. A
# policy that does not score higher has learned nothing but that answer. Where agents play against each other it says
# nothing: one of them wins whatever all of them say.

CHECK_BASELINE = "baseline"
HIGH = 0.5
"""Mean score from which a constant answer is worth a warning: rewards are mostly 0 to 1."""
BROKEN = 0.9
"""Mean score of a constant answer from which the environment teaches nothing."""
ALIKE = 0.05
CONTESTS = 4
"""Instances on which agents say different things."""
FEW = 16
"""Instances below which a result may be chance."""
_SCALE = 1.0
"""Largest reward up to which a mean score is taken as a share of what can be earned."""


@dataclass(frozen=True)
class Constant:
    """The mean score of one constant answer over instances."""

    reply: Canned
    mean: float
    instances: int


async def observe_baseline(
    subject: Subject, indices: Sequence[int], without: Collection[Canned], pace: Pace, share: float
) -> list[Played]:
    """Give every constant answer, but those ``without`` a reward, to one instance after the other."""
    plan = product(indices, [reply for reply in CONSTANTS if reply not in without])
    return [await play(subject, index, reply, pace) async for index, reply in pace.take(plan, share)]


async def contests(subject: Subject, indices: Sequence[int], pace: Pace, share: float) -> list[Played]:
    """Play agents against each other that say different things: where all say the same a game may always be drawn."""
    plan = product(indices[:CONTESTS], permutations(CONSTANTS[:4], 2))
    return [await play(subject, index, one, pace, other) async for index, (one, other) in pace.take(plan, share)]


def constants(played: Sequence[Played]) -> list[Constant]:
    """The means by answer, best first; of two that are as good, the one that comes first in ``CONSTANTS``."""
    found = []
    for reply in CONSTANTS:
        scores = [one.score for one in played if one.reply == reply and one.score is not None]
        if scores:
            found.append(Constant(reply, math.fsum(scores) / len(scores), len(scores)))
    return sorted(found, key=lambda constant: -constant.mean)


def zero_sum(played: Sequence[Played]) -> float | None:
    """The sum of several agents' rewards, where it is the same in all episodes though the rewards change, or None."""
    rewards = {tuple(one.rewards.values()) for one in played if one.rewards}
    totals = [math.fsum(some) for some in rewards]
    same = all(math.isclose(total, totals[0], abs_tol=1e-9) for total in totals)
    return totals[0] if same and len(rewards) > 1 and any(max(some) > min(some) for some in rewards) else None


def judge_baseline(played: Sequence[Played], ranked: bool = False, contested: Sequence[Played] = ()) -> list[Finding]:
    """One finding about the best constant answer.

    ``ranked``: whether a ranking replaces these rewards in training. ``contested``: episodes in which several agents
    said different things.
    """
    found = constants(played)
    if not found:
        return []
    if (total := zero_sum([*played, *contested])) is not None:
        text = (
            f"What one agent wins another loses: their rewards sum to {total:.3g} whatever is said, so one answer from"
        )
        text += " all of them tells nothing. A task's score does, against an opponent under [eval] agents."
        return [Finding(CHECK_BASELINE, "note", text)]
    best, name = found[0], found[0].reply.label
    if len(found) > 1 and all(one.score == 0 for one in played if one.score is not None):
        return [Finding(CHECK_BASELINE, "note", f"No constant answer earns anything: {len(found)} were tried.")]
    many = f"{best.instances} instance{'' if best.instances == 1 else 's'}"
    text = f"{name[0].upper()}{name[1:]} scores {best.mean:.2f} on average over {many}"
    if best.mean < HIGH or best.instances < FEW:
        return [Finding(CHECK_BASELINE, "note", f"{text}: the best of {len(found)} constant answers.")]
    as_good = sum(constant.mean >= best.mean - ALIKE for constant in found) - 1
    others = f" {as_good} of {len(found) - 1} other constant answers do as well." if as_good else ""
    largest = max(abs(one.score) for one in played if one.score is not None)
    level: Level = "error" if best.mean >= BROKEN and largest <= _SCALE and not ranked else "warning"
    where = " In training the group's ranking counts instead." if ranked else ""
    return [Finding(CHECK_BASELINE, level, f"{text}: rewards can be had without reading the prompt.{others}{where}")]


# Check: rewards are of a usable size, and the same reply earns the same reward.

CHECK_REWARDS = "rewards"
LARGE = 100.0
AGAIN = 8
"""Episodes that are played a second time."""
_Scored = tuple[Played, float, EpisodeOutcome | None]


async def observe_rewards(
    subject: Subject, played: Sequence[Played], pace: Pace, share: float
) -> list[tuple[Played, Played]]:
    """Play some episodes again with the same replies; returns pairs."""
    chosen = [one for one in played if one.score is not None][:: max(1, len(played) // AGAIN)]
    return [(one, await play(subject, one.index, one.reply, pace)) async for one in pace.take(chosen, share)]


def judge_rewards(
    played: Sequence[Played], repeated: Sequence[tuple[Played, Played]], ranked: bool = False
) -> list[Finding]:
    """What canned replies earned, whether they earn it again, and whether it pays to be unreadable.

    ``ranked``: whether a ranking replaces these rewards in training.
    """
    scores = [reward for one in played for reward in one.rewards.values()]
    if not scores:
        return []
    low, high = min(scores), max(scores)
    text = (
        f"Canned replies earned {low:.3g} to {high:.3g}, {statistics.fmean(scores):.3g} on average"
        f" (standard deviation {statistics.pstdev(scores):.2g})."
    )
    large = max(abs(low), abs(high)) > LARGE
    advice = " Rewards of such a size make steps of that size: bring them to the order of 1." if large else ""
    findings = [Finding(CHECK_REWARDS, "warning" if large else "note", text + advice)]
    if not ranked:
        findings += _nonsense(played)
    changed = [(one, again) for one, again in repeated if again.rewards and again.rewards != one.rewards]
    if changed:
        one, again = changed[0]
        findings.append(
            Finding(
                CHECK_REWARDS,
                "warning",
                f"The same replies earn another reward the second time ({len(changed)} of {len(repeated)} episodes):"
                f" {one.reply.label} at train instance {one.index} earns {_spoken(one)}, then {_spoken(again)}."
                " Draw what is random from ep.rng or ep.noise.",
            )
        )
    return findings


def _nonsense(played: Sequence[Played]) -> list[Finding]:
    """A warning where an invalid reply earns more than one that was read, to the same instance."""
    scored = [(one, one.score, one.outcome) for one in played if one.score is not None]
    read = {one.index: (one, score) for one, score, outcome in _worst_last(scored) if outcome and not outcome.invalid}
    for one, score, outcome in scored:
        other, least = read.get(one.index, (one, score))
        if outcome is not None and outcome.invalid and score > least:
            text = f"It pays to be unreadable: at train instance {one.index} {one.reply.label} is invalid and earns"
            text += f" {score:.3g}, {other.reply.label} is not and earns {least:.3g}. Give Invalid a reward= below all."
            return [Finding(CHECK_REWARDS, "warning", text)]
    return []


def _worst_last(scored: list[_Scored]) -> list[_Scored]:
    return sorted(scored, key=lambda found: -found[1])


def _spoken(one: Played) -> str:
    """A reward, or those of several agents."""
    if len(one.rewards) == 1:
        return f"{one.score:.3g}"
    return ", ".join(f"{reward:.3g} ({agent})" for agent, reward in one.rewards.items())


# Check: the agents that speak are those that the environment declares.
#
# A task says which policy acts as which agent; at its submission that is checked against the declared agents.

CHECK_AGENTS = "agents"
ENOUGH = 16
"""Episodes from which an agent that was never asked is worth a warning."""
_AGENTS_NAMED = 8


def judge_agents(played: Sequence[Played], declared: Sequence[str]) -> list[Finding]:
    """A warning for agents that never speak; a note of several that speak. An undeclared one fails its episode."""
    asked = frozenset[str]().union(*(one.agents for one in played))
    if not declared:
        if len(asked) < 2:
            return []
        names = ", ".join(f'"{name}"' for name in sorted(asked)[:_AGENTS_NAMED])
        text = (
            f"{len(asked)} agents speak, and none is declared. With @env(agents=({names})) a task that leaves one out"
        )
        return [Finding(CHECK_AGENTS, "note", f"{text} is refused when it is submitted.")]
    silent = [name for name in declared if name not in asked]
    if silent and len(played) >= ENOUGH:
        text = f"{_listed(silent)}: declared and never asked in {len(played)} episodes with odd replies;"
        text += (
            " a policy for it would learn nothing. Remove it from @env(agents=…), unless only good replies lead to it."
        )
        return [Finding(CHECK_AGENTS, "warning", text)]
    if silent:
        return []
    return [
        Finding(CHECK_AGENTS, "note", f"All {len(declared)} agents that it declares were asked: {_listed(declared)}.")
    ]


def _listed(names: Sequence[str]) -> str:
    """The first few names, and how many others there are."""
    if len(names) <= _AGENTS_NAMED:
        return ", ".join(names)
    return f"{', '.join(names[:_AGENTS_NAMED])} and {len(names) - _AGENTS_NAMED} others"


# Check: programs in the sandbox end in time where the reply is not to blame.
#
# Canned replies ask for no work, so what runs out of time is the environment's own part of the program.

CHECK_SANDBOXES = "sandbox"
METRIC = "sandbox_timeouts"
"""What an episode that uses the sandbox logs: how many of its programs ran out of time."""


def judge_sandboxes(played: Sequence[Played]) -> list[Finding]:
    """A warning where a program ran out of time; nothing for environments that use no sandbox, or in time."""
    used = [one for one in played if one.outcome is not None and METRIC in one.outcome.metrics]
    late = [one for one in used if one.outcome is not None and one.outcome.metrics[METRIC]]
    if not late:
        return []
    text = f"In {len(late)} of {len(used)} episodes a program in the sandbox ran out of time, such as at train instance"
    text += f" {late[0].index}, given {late[0].reply.label}: a right answer may well do so, too. Give it more seconds="
    return [Finding(CHECK_SANDBOXES, "warning", f"{text}…, or less to do.")]
