"""Why groups fail: errors that end a run before its last step, and environments that fail because of a reply."""

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

# Lost draws: detects attempts that lose all their samples more often than by chance.
#
# After ``l`` of ``d`` draws were lost, with a uniform prior, the next ``k`` are all lost with the probability ``Π (l +
# 1 + i) / (d + 2 + i)`` for ``i < k``: Laplace's rule of succession, applied ``k`` times.

FEWEST_LOST = 5
"""Draws in a row that may always be lost: a short outage is no reason to pause."""
MOST_LOST = 24
"""Draws in a row that are always too many. If half of all instances fail, one group in 16 million loses this many."""
CHANCE = 1e-6
"""The probability below which chance is no explanation: a thousand steps close 8,000 groups."""

Where = tuple[str, str]
"""A component of the task, and the version of its environment."""


class LostDraws:
    """The draws of one task."""

    def __init__(self) -> None:
        self._lost: Counter[Where] = Counter()
        self._drawn: Counter[Where] = Counter()

    def survived(self, where: Where, lost: int) -> None:
        self._lost[where] += lost
        self._drawn[where] += lost + 1

    def beyond_chance(self, where: Where, in_a_row: int) -> bool:
        """True if ``in_a_row`` lost draws of one group are more than chance explains.

        Lost draws of other open groups do not count.
        """
        if in_a_row < FEWEST_LOST:
            return False
        return in_a_row >= MOST_LOST or all_lost_by_chance(self._lost[where], self._drawn[where], in_a_row) < CHANCE


def all_lost_by_chance(lost: int, drawn: int, more: int) -> float:
    """The probability that ``more`` further draws are all lost, after ``lost`` of ``drawn`` were."""
    return math.prod((lost + 1 + i) / (drawn + 2 + i) for i in range(more))


# Errors that end a run before its last step: its task gets a state and a sentence, not a crash.

SOLVED = 1.0
"""The reward of a perfect reply, if an environment pays from 0 to 1 as most do."""
MANY = 0.3
"""The share of cut off replies that explains why no reply earns more."""
FALLEN = 0.1
"""The least fall of a step's mean reward that counts as a loss. If a tenth of 64 rewards is 1, all are 0 once in a
thousand times."""


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
    """The rewards of a step in which no group has two different ones: a clause, and what helps.

    ``best``: the step with the highest mean reward, and that reward. ``cut``: the share of cut off episodes.
    ``failure``: the failure of all episodes.
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
    """The error for a group number with draws that lose all their samples.

    ``index``: the instance of the last draw; ``component``: the component of a mixture.
    """
    which = f" {component}" if component else ""
    return Paused(
        f"The environment{which} failed {draws} groups in a row: {first_failure(played)}.",
        f"`marlaas env play {environment} --index {index}` plays the last of them; instances have no largest number.",
    )


def too_few(draws: int, wanted: int, played: Sequence[FinishedEpisode], component: str = "") -> Paused:
    """The error for consecutive draws that lose more samples than a group of ``wanted`` can spare."""
    on = f" on {component}" if component else ""
    return Paused(
        f"In {draws} draws in a row{on} fewer than {wanted} of {len(played)} members had a reward:"
        f" {first_failure(played)}.",
        "Catch the exception and pay a reward, declare `on_error`, or lower 'train.min_members'.",
    )


def first_failure(played: Sequence[FinishedEpisode]) -> str:
    """The error of the first failed episode, with its line in the plugin."""
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


# Survivors' bias: does an environment fail because of the reply? Then rewards are means over what it survived. Pure.
#
# All samples of a group run the same instance; a failed one is run again with the same noise. Two hypotheses for a
# failure at one line of the environment's code are compared:
#
# - *Chance, or the instance*: each run of the group fails there with the same probability, the best fit per group.
# - *The reply*: each distinct reply either causes the failure or does not. One that causes it fails nearly every run
#   (``REPEATS`` of them: not every sampler repeats a reply exactly).
#
# The weight is the product over all groups of the likelihood ratio of the second hypothesis to the first. The reply
# hypothesis is fixed before each group; chance gets its best fit afterwards. So under chance the expected factor is at
# most 1 (Wasserman, Ramdas and Balakrishnan, "Universal inference", 2020, arXiv 1912.11436). By Ville's inequality the
# weight *ever* reaches ``ENOUGH`` with a probability of at most 1 / ``ENOUGH``. This assumes independent failures
# between runs; a long outage looks like a reply. A failure by one reply in five takes about five groups of eight
# distinct replies; one in fifty about ninety.

ENOUGH = 1000.0
"""The weight that blames the reply: a false alarm has a probability of at most 1 in 1,000."""
MOST_FACTOR = 20.0
"""The largest factor of one group."""
REPEATS = 0.9
"""How often a run that failed because of its reply fails again."""

MOST_LINES = 64
"""Most lines to weigh, the first failing ones: the plugin itself reports the line."""

Place = tuple[str, int]


Said = Mapping[tuple[str, int], tuple[str, ...]]
"""The texts of a sample's agents in order, by agent and index of the trajectory."""


@dataclass(frozen=True)
class Plays:
    """The runs of a group with respect to one line of the environment's code."""

    failed: int
    """Distinct replies with a failed run at the line."""
    passed: int
    """The other distinct replies."""
    again: int
    """Runs that failed there."""
    recovered: int
    """The other runs of the same replies."""
    others: int = 0
    members: tuple[int, ...] = ()
    """The number of samples of each reply with a failed run there."""

    @classmethod
    def of(cls, members: Sequence[tuple[Said, Sequence[EpisodeOutcome]]], place: Place) -> Plays:
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
    """The evidence so far about one line of the environment's code."""

    failure: Failure
    weight: float
    """Natural logarithm of the product of the groups' factors."""
    failed: int = 0
    passed: int = 0
    episodes: int = 0
    """Samples that failed there."""
    told: bool = False


def factor(group: Plays, failed: int, passed: int) -> float:
    """The likelihood ratio of the reply hypothesis to chance for a group.

    ``failed`` and ``passed``: sums of the earlier groups' counts.
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
        self._plays = 0
        self._lines: dict[Place, Line] = {}

    def see(self, members: Sequence[FinishedEpisode]) -> tuple[Line, ...]:
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
        if before is None:  # no earlier run failed there: if all had distinct replies, the factors
            # of those groups would be 1 / (plays + 1) together; with fewer replies they are not lower
            before = Line(failure or Failure(""), -log(self._plays + 1), passed=self._plays)
        weight, failed, passed = before.weight, before.failed, before.passed
        if any(
            said != played[0][0] for said, _ in played
        ):  # if all replies are equal, both hypotheses explain everything
            group = Plays.of(played, place)
            weight += log(factor(group, failed, passed))
            failed, passed = failed + group.failed, passed + group.passed
        episodes = before.episodes + sum(any(place_of(end) == place for end in ends) for _, ends in played)
        return Line(failure or before.failure, weight, failed, passed, episodes, before.told)


def place_of(end: EpisodeOutcome) -> Place | None:
    """The line at which a run failed; None if it ended well or no line is to blame."""
    failure = end.failure
    if failure is None or not failure.file or end.status not in ("error", "timeout") or end.overloaded or end.died:
        return None
    return failure.file, failure.line


def said_by(member: FinishedEpisode) -> Said:
    """The texts of a sample's agents in its last run."""
    return {
        (agent, place): tuple(text for role, text in transcript.turns if role == "assistant")
        for (_, agent, place), transcript in member.transcripts.items()
    }


def _begins(first: Said, said: Said) -> bool:
    return all(said.get(key, ())[: len(texts)] == texts for key, texts in first.items())


def _beta(a: float, b: float) -> float:
    return lgamma(a) + lgamma(b) - lgamma(a + b)


# Warns people once if an environment fails because of a reply, or fails always.

EVERY = 64
"""First episodes that must all fail at the same place: a default step."""


class BiasWatch:
    """Of one task's training groups in one run; the store knows the findings of earlier runs."""

    def __init__(self, store: Store, task: int) -> None:
        self._store = store
        self._task = task
        self._known: dict[tuple[str, str], Survivors] = {}
        self._always: dict[tuple[str, str], list[Failure | None]] = {}
        """Also failures with a reward; None for an episode that did not fail."""

    def see(self, version: str, members: Sequence[FinishedEpisode], component: str = "") -> None:
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
        except StoreError:
            new = True
        if new:
            self._store.telemetry.event("environment", words, self._task, "warning")


def the_only(failures: Sequence[Failure | None]) -> Failure | None:
    """The common failure if all fail at the same place of the code, else None."""
    first = failures[0] if failures else None
    if first is None or not first.line:
        return None
    alike = (one is not None and (one.file, one.line) == (first.file, first.line) for one in failures)
    return first if all(alike) else None


def always(failure: Failure) -> str:
    """The warning that every episode fails at one place, and what helps."""
    return (
        f"Each of the first {EVERY} episodes failed at {failure.file}, line {failure.line} ({failure.message}). What"
        " fails whatever is said is no reward, also where `on_error` pays for it: mend the line, or ask for the form"
        " that it needs."
    )


def sentence(line: Line, members: int) -> str:
    """The warning for a line, with its place and what helps."""
    place = f"{line.failure.file}, line {line.failure.line}"
    return (
        f"Some replies make the environment fail at {place} ({line.failure.message}): {line.episodes} of {members}"
        " episodes failed there, again each time they were played, while others of the same instances ended well. They"
        " have no reward, so training does not learn to avoid them. Catch the exception and pay a reward, or declare"
        " @env(on_error=0.0)."
    )
