"""Why groups fail: reasons for which a run ends before its last step, and environments that fail because of a reply."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import exp, lgamma, log

from ..environments import EpisodeOutcome, FinishedEpisode
from ..errors import Fruitless, Paused, StoreError
from ..store import Store
from ..training import RewardSummary
from ..trajectories import Failure

# Lost draws: when attempts that lose all of their samples are more than chance.
#
# An environment that fails on a share of its instances continues: a lost draw is made again, from another instance. One
# that has come to fail on all of them (its rows have run out, a server is gone) would be drawn from without end.
#
# What a task has drawn before says how likely a lost draw is. After ``l`` of ``d`` draws, and with a uniform prior, the
# next ``k`` are all lost with the probability ``Π (l + 1 + i) / (d + 2 + i)`` for ``i < k``: Laplace's rule of
# succession, applied ``k`` times.

FEWEST_LOST = 5
"""Draws in a row that may be lost in any case: a service that was away for a moment is no reason to pause."""
MOST_LOST = 24
"""Draws in a row that are enough in any case. Where half of all instances fail, one group in 16 million is lost so
often."""
CHANCE = 1e-6
"""The probability below which chance explains nothing: a task of a thousand steps closes 8,000 groups."""

Where = tuple[str, str]
"""A component of the task, and the version of its environment."""


class LostDraws:
    """The draws of one task."""

    def __init__(self) -> None:
        self._lost: Counter[Where] = Counter()
        self._drawn: Counter[Where] = Counter()

    def survived(self, where: Where, lost: int) -> None:
        """A draw has rewards, after this many for the same group that were lost."""
        self._lost[where] += lost
        self._drawn[where] += lost + 1

    def beyond_chance(self, where: Where, in_a_row: int) -> bool:
        """Whether this many lost draws of one group, one after the other, are more than chance explains.

        Draws of other groups that none has followed with rewards yet count for nothing: they may be lost for the same
        reason.
        """
        if in_a_row < FEWEST_LOST:
            return False
        return in_a_row >= MOST_LOST or all_lost_by_chance(self._lost[where], self._drawn[where], in_a_row) < CHANCE


def all_lost_by_chance(lost: int, drawn: int, more: int) -> float:
    """The probability that ``more`` further draws are all lost, after ``lost`` of ``drawn`` were."""
    return math.prod((lost + 1 + i) / (drawn + 2 + i) for i in range(more))


# Reasons with which a run ends before its last step: its task then has a state and a sentence, not a crash.

SOLVED = 1.0
"""The reward of a perfect reply, if an environment pays as most do: from 0 to 1."""
MANY = 0.3
"""The share of replies that were cut off from which on that is why none of them earns more."""
FALLEN = 0.1
"""By how much a step's mean reward must have been higher before, for something to be lost: of 64 rewards of which a
tenth is 1, all are 0 once in a thousand times."""


def never_asks(environment: str, where: str) -> Fruitless:
    """The error that pauses a task whose environment ends its episodes without asking the model."""
    return Fruitless(
        f"{environment} never called `ep.ask` in {where}: nothing can be learned from it.",
        "Let it `await ep.ask(...)`, then resume the task.",
    )


def all_equal(
    groups: Sequence[RewardSummary],
    best: tuple[int, float] = (0, 0.0),
    cut: float = 0.0,
    failure: Failure | None = None,
) -> tuple[str, str]:
    """What the rewards of a step were, none of whose groups has two different ones: a clause, and what helps.

    ``best``: the step with the highest mean reward so far, and that. ``cut``: the share of the episodes that the length
    limit ended. ``failure``: that of all episodes, for which a reward was paid.
    """
    spoken = [rewards for rewards in groups if rewards.count]
    if not spoken:
        return "Its agents were not asked in the last step", "Let the environment ask them."
    count = sum(rewards.count for rewards in spoken)
    least, most = min(rewards.least for rewards in spoken), max(rewards.most for rewards in spoken)
    if least < most:
        return (
            f"Rewards were {least:.2f} to {most:.2f}, but equal within each group: replies to a prompt earn the same",
            'Draw what is solved sometimes (`sampling = "difficulty"` under [train]), or raise `group_size`.',
        )
    said = f"All {count} rewards were {least:.2f}"
    if least == SOLVED:
        return f"{said}: it is solved", "Make it harder under [environment_config], or train on something else."
    step, before = best
    if step and before >= least + FALLEN:
        return (
            f"{said}, down from {before:.2f} at step {step}",
            "What was learned is lost: begin a new task with a smaller `learning_rate`.",
        )
    if failure is not None:
        return (
            f"{said}, which is paid for a failure: {failure.message} ({failure.file}, line {failure.line})",
            "Mend that line: what fails whatever is said is no reward.",
        )
    if cut >= MANY:
        return (
            f"{said}, and the length limit ended {cut:.0%} of the replies",
            "Raise `max_tokens` (and `max_episode_tokens`) under [sampling] in a new task.",
        )
    if least <= 0.0:
        return (
            f"{said}: nothing to climb",
            "Read some replies (`marlaas rollouts`). Where right ones earn nothing, mend the reward; else make it"
            " easier, pay for a part of the way, or raise `group_size`.",
        )
    return f"{said}: every reply earns the same", "Let the reward tell better replies from worse ones."


def never_spoke(agents: Sequence[str], policy: str, where: str) -> Fruitless:
    """The error that pauses a task whose environment asks no agent of one of its policies."""
    asked = f"The agent {agents[0]} was" if len(agents) == 1 else f"The agents {' and '.join(agents)} were"
    return Fruitless(
        f"{asked} never asked in {where}, so the policy {policy} learns nothing.",
        "Let the environment ask, or give that policy a `frozen` version.",
    )


def all_lost(
    draws: int, played: Sequence[FinishedEpisode], environment: str, index: int, component: str = ""
) -> Paused:
    """The error for a group number whose draws lose all of their members.

    ``index``: the instance of the last draw; ``component``: of a mixture, which.
    """
    which = f" {component}" if component else ""
    return Paused(
        f"The environment{which} failed {draws} groups in a row: {first_failure(played)}.",
        f"`marlaas env play {environment} --index {index}` plays the last of them; instances have no largest number.",
    )


def too_few(draws: int, wanted: int, played: Sequence[FinishedEpisode], component: str = "") -> Paused:
    """The error for draws, one after the other, that lose more members than a group of ``wanted`` can do without."""
    on = f" on {component}" if component else ""
    return Paused(
        f"In {draws} draws in a row{on} fewer than {wanted} of {len(played)} members had a reward:"
        f" {first_failure(played)}.",
        "Catch the exception and pay a reward, declare `on_error`, or lower 'train.min_members'.",
    )


def first_failure(played: Sequence[FinishedEpisode]) -> str:
    """What went wrong in the first failed episode, with the place in the plugin."""
    for one in played:
        failure = one.episode.failure
        if failure and one.episode.status != "ok":
            place = f" ({failure.file}, line {failure.line})" if failure.file else ""
            return f"{failure.message}{place}"
    if any(one.episode.status == "ok" for one in played):
        return "the environment ended without asking the model"
    statuses = {one.episode.status for one in played}
    return " and ".join(sorted(_WORDS.get(status, status) for status in statuses))


_WORDS = {"skip": "the environment skipped it", "timeout": "it took too long", "cancelled": "it was cut off"}


# Survivors' bias: does an environment fail because of what was said? Then rewards are means over what it survived.
#
# Within a group all members play the same instance, and a member that failed is played again with the same noise. Two
# explanations of a failure at one line of the environment's code are weighed against each other:
#
# - *Chance, or the instance*: each play of the group fails there with the same probability, whatever was said. That
#   probability may be another one in each group, and is taken to be the one that explains the group best.
# - *The reply*: each different reply of the group either makes it fail there or does not, whoever gave it. One that
#   does fails nearly each play (``REPEATS`` of them: not every sampler repeats a reply to the last token).
#
# Who failed after what others said, too, before they went on, gave the same reply as these.
#
# The weight is the product, over all groups, of how much better the second explains a group than the first. The
# explanation by the reply is fixed before each group is seen, from the groups before it, and that by chance is the
# best that there is afterwards. So under chance the expected factor of a group is at most 1 (the running likelihood
# ratio of Wasserman, Ramdas and Balakrishnan, "Universal inference", 2020, arXiv 1912.11436), and by Ville's
# inequality the weight of a line *ever* reaches ``ENOUGH`` with a probability of at most 1 / ``ENOUGH``, however long
# a task runs. That holds for failures that are independent from play to play of a group; an outage that outlasts all
# runs of a sample looks the same as a reply. ``MOST_FACTOR`` bounds what one group can say, so at least three groups
# have to agree. Of a failure that one reply in five causes this takes some five groups of eight different replies, of
# one in fifty some ninety; one that is much rarer biases little, and is not found.
#
# Pure. Deaths of the process and overload are not failures at a line.

ENOUGH = 1000.0
"""The weight from which the reply is to blame: a false alarm for a line has a probability of at most 1 in 1,000."""
MOST_FACTOR = 20.0
"""The largest factor of one group."""
REPEATS = 0.9
"""How often a play that failed because of its reply fails again, as the explanation by the reply has it."""

MOST_LINES = 64
"""Lines that are weighed, the first at which anything failed: where a plugin says that it failed is its own word."""

Place = tuple[str, int]
"""A file of the plugin, and a line."""


Said = Mapping[tuple[str, int], tuple[str, ...]]
"""What a member's agents said: texts in order, by agent and place among its trajectories."""


@dataclass(frozen=True)
class Plays:
    """The plays of a group as one line of the environment's code sees them."""

    failed: int
    """Different replies after which any play failed at the line."""
    passed: int
    """The other different replies."""
    again: int
    """Plays that failed there."""
    recovered: int
    """The other plays of the same replies."""
    others: int = 0
    """Plays of the other replies."""
    members: tuple[int, ...] = ()
    """How many gave each of the replies after which any play failed there."""

    @classmethod
    def of(cls, members: Sequence[tuple[Said, Sequence[EpisodeOutcome]]], place: Place) -> Plays:
        """Count the plays of all members: what each said, and how its plays ended."""
        counted = [(said, sum(place_of(end) == place for end in ends), len(ends)) for said, ends in members]
        failing: list[Said] = []
        for said, failures, _ in sorted(counted, key=lambda one: sum(map(len, one[0].values()))):
            if failures and not any(_begins(first, said) for first in failing):
                failing.append(said)
        again = recovered = others = 0
        passing: list[Said] = []
        gave = [0] * len(failing)
        for said, failures, plays in counted:
            same = next((number for number, first in enumerate(failing) if _begins(first, said)), None)
            if same is not None:
                gave[same] += 1
                again, recovered = again + failures, recovered + plays - failures
            else:
                others += plays
                if said not in passing:
                    passing.append(said)
        return cls(len(failing), len(passing), again, recovered, others, tuple(gave))


@dataclass(frozen=True)
class Line:
    """What the groups so far say about one line of the environment's code."""

    failure: Failure
    """The newest one there."""
    weight: float
    """Natural logarithm of the product of the groups' factors."""
    failed: int = 0
    """Sum of ``Plays.failed``."""
    passed: int = 0
    """Sum of ``Plays.passed``."""
    episodes: int = 0
    """Members that failed there."""
    told: bool = False
    """Whether the weight has reached ``ENOUGH``."""


def factor(group: Plays, failed: int, passed: int) -> float:
    """How much better the reply explains a group than chance does.

    ``failed`` and ``passed`` are the sums of the earlier groups' counts of these names. They say what share of replies
    to expect to fail: the explanation by the reply has it from a uniform prior and these.
    """
    reply = _beta(failed + group.failed + 1, passed + group.passed + 1) - _beta(failed + 1, passed + 1)
    reply += group.again * log(REPEATS) + group.recovered * log(1 - REPEATS)
    reply -= sum(log(1 - (1 - REPEATS) ** members) for members in group.members)  # one of these has failed
    fails, passes = group.again, group.recovered + group.others
    chance = sum(count * log(count / (fails + passes)) for count in (fails, passes) if count)
    return min(MOST_FACTOR, exp(reply - chance))


class Survivors:
    """Weighs the groups of one environment version, one after the other."""

    def __init__(self) -> None:
        self.members = 0
        """Of all groups."""
        self._plays = 0
        self._lines: dict[Place, Line] = {}

    def see(self, members: Sequence[FinishedEpisode]) -> tuple[Line, ...]:
        """Weigh a further group; returns the lines of which it is known from now on that the reply decides."""
        ends = [member.outcomes for member in members]
        failures = {place: end.failure for plays in ends for end in plays if (place := place_of(end)) and end.failure}
        found = []
        if failures or self._lines:
            new = [place for place in failures if place not in self._lines][: MOST_LINES - len(self._lines)]
            played = [(said_by(member), member.outcomes) for member in members]
            for place in (*self._lines, *new):
                now = self._weighed(place, played, failures.get(place))
                if now.weight >= log(ENOUGH) and not now.told:
                    now = replace(now, told=True)
                    found.append(now)
                self._lines[place] = now
        self.members += len(ends)
        self._plays += sum(map(len, ends))
        return tuple(found)

    def _weighed(
        self, place: Place, played: Sequence[tuple[Said, Sequence[EpisodeOutcome]]], failure: Failure | None
    ) -> Line:
        before = self._lines.get(place)
        if before is None:  # in all plays until now none failed there: were they all of different replies, the factors
            # of those groups would be 1 / (plays + 1) together, and of fewer replies they are not lower
            before = Line(failure or Failure(""), -log(self._plays + 1), passed=self._plays)
        weight, failed, passed = before.weight, before.failed, before.passed
        if any(said != played[0][0] for said, _ in played):  # where all said the same, both explain all there is
            group = Plays.of(played, place)
            weight += log(factor(group, failed, passed))
            failed, passed = failed + group.failed, passed + group.passed
        episodes = before.episodes + sum(any(place_of(end) == place for end in ends) for _, ends in played)
        return Line(failure or before.failure, weight, failed, passed, episodes, before.told)


def place_of(end: EpisodeOutcome) -> Place | None:
    """The line at which a play failed; None if it ended well, or where no line is to blame."""
    failure = end.failure
    if failure is None or not failure.file or end.status not in ("error", "timeout") or end.overloaded or end.died:
        return None
    return failure.file, failure.line


def said_by(member: FinishedEpisode) -> Said:
    """What a member's agents said in its last play."""
    return {
        (agent, place): tuple(text for role, text in transcript.turns if role == "assistant")
        for (_, agent, place), transcript in member.transcripts.items()
    }


def _begins(first: Said, said: Said) -> bool:
    """Whether who said all of ``said`` had said ``first`` before."""
    return all(said.get(key, ())[: len(texts)] == texts for key, texts in first.items())


def _beta(a: float, b: float) -> float:
    """Natural logarithm of the beta function."""
    return lgamma(a) + lgamma(b) - lgamma(a + b)


# Tells people once where an environment fails because of what was said (``survivors``), or whatever is said.

EVERY = 64
"""First episodes that all fail in the same place before it is told that no reply can be to blame: a default step."""


class BiasWatch:
    """Of one task's training groups, while one learner runs; an earlier run's findings are known by the store."""

    def __init__(self, store: Store, task: int) -> None:
        self._store = store
        self._task = task
        self._known: dict[tuple[str, str], Survivors] = {}
        """By component of a mixture and version of its environment."""
        self._always: dict[tuple[str, str], list[Failure | None]] = {}
        """Likewise, how the first episodes failed, also if a reward is paid for it; None for one that did not."""

    def see(self, version: str, members: Sequence[FinishedEpisode], component: str = "") -> None:
        """Weigh a group that was played on an environment version, and warn of what is known by now."""
        survivors = self._known.setdefault((component, version), Survivors())
        for line in survivors.see(members):
            about = f"survivors {version} {line.failure.file}:{line.failure.line}"
            self._warn(about, sentence(line, survivors.members))
        first = self._always.setdefault((component, version), [])
        first += [one.outcome.failure for one in members[: EVERY - len(first)]]
        if len(first) == EVERY and (failure := the_only(first)):
            self._warn(f"always {version} {failure.file}:{failure.line}", always(failure))

    def _warn(self, about: str, words: str) -> None:
        try:
            new = self._store.tasks.warn(self._task, about, words)
        except StoreError:  # locked or full: the log has it, and the next run finds it again
            new = True
        if new:
            self._store.telemetry.event("environment", words, self._task, "warning")


def the_only(failures: Sequence[Failure | None]) -> Failure | None:
    """The failure of all of them, if it is one at the same place of the code; else None."""
    first = failures[0] if failures else None
    if first is None or not first.line:
        return None
    alike = (one is not None and (one.file, one.line) == (first.file, first.line) for one in failures)
    return first if all(alike) else None


def always(failure: Failure) -> str:
    """That every episode fails in one place, whatever was said, and what helps."""
    return (
        f"Each of the first {EVERY} episodes failed at {failure.file}, line {failure.line} ({failure.message}). What"
        " fails whatever is said is no reward, also where `on_error` pays for it: mend the line, or ask for the form"
        " that it needs."
    )


def sentence(line: Line, members: int) -> str:
    """What is wrong, where, and what helps."""
    place = f"{line.failure.file}, line {line.failure.line}"
    return (
        f"Some replies make the environment fail at {place} ({line.failure.message}): {line.episodes} of {members}"
        " episodes failed there, again each time they were played, while others of the same instances ended well. They"
        " have no reward, so training does not learn to avoid them. Catch the exception and pay a reward, or declare"
        " @env(on_error=0.0)."
    )
