"""Errors that end a run early, and environments that fail on a reply."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from ..environments.protocol import FinishedEpisode
from ..errors import Fruitless, Paused, StoreError
from ..store.store import Store
from ..trainer.advantages import RewardSummary
from ..trajectories import Failure

SOLVED = 1.0
"""A perfect reply's reward if an environment pays 0 to 1."""
MANY = 0.3
"""Cut off replies that explain equal rewards."""
FALLEN = 0.1
"""Fall of a step's mean reward. If a tenth of 64 rewards is 1, all are 0 once in a thousand times."""


def never_asks(environment: str, where: str, rejected: str = "") -> Fruitless:
    """The error if episodes end without asking the model; ``rejected``: the last refusal that a program heard."""
    if rejected:
        return Fruitless(
            f"The requests of {environment} were refused in {where}: {rejected.rstrip('.')}.",
            "Mend that, then resume the task.",
        )
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
    """A clause on equal rewards, and what helps.

    ``best``: step and value of the highest mean reward. ``cut``: share of cut off episodes. ``failure``: of all
    episodes.
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
    """The error if no agent of a policy is asked."""
    asked = f"The agent {agents[0]} was" if len(agents) == 1 else f"The agents {' and '.join(agents)} were"
    return Fruitless(
        f"{asked} never asked in {where}, so the policy {policy} learns nothing.",
        "Let the environment ask, or give that policy a `frozen` version.",
    )


def all_lost(
    draws: int, played: Sequence[FinishedEpisode], environment: str, index: int, component: str = ""
) -> Paused:
    """The error for draws that lose all samples."""
    which = f" {component}" if component else ""
    return Paused(
        f"The environment{which} failed {draws} groups in a row: {first_failure(played)}.",
        f"`marlaas env play {environment} --index {index}` plays the last of them; instances have no largest number.",
    )


def too_few(draws: int, wanted: int, played: Sequence[FinishedEpisode], component: str = "") -> Paused:
    """The error for consecutive draws with fewer than ``wanted`` rewards."""
    on = f" on {component}" if component else ""
    return Paused(
        f"In {draws} draws in a row{on} fewer than {wanted} of {len(played)} members had a reward:"
        f" {first_failure(played)}.",
        "Catch the exception and pay a reward, declare `on_error`, or lower 'train.min_members'.",
    )


def first_failure(played: Sequence[FinishedEpisode]) -> str:
    """The first failed episode's error, with its line in the plugin."""
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

MAX_SILENT = 256
"""Episodes without asking the model. If every other instance asks, 32 groups of eight end so once in 4e9 runs."""


@dataclass
class DrawHistory:
    """A task's draws from one component with one version of its environment."""

    lost: int = 0
    drawn: int = 0
    short: int = 0
    """Draws in a row of which some samples were lost."""
    asked: bool = False
    """True once an agent was asked."""
    silent: int = 0
    """Episodes before that which ended well."""

    def survived(self, lost: int, short: bool = False) -> None:
        """Count a draw with a survivor, after ``lost`` ones; ``short``: too few of them."""
        self.lost += lost
        self.drawn += lost + 1
        self.short = self.short + 1 if short else 0

    def never_asked(self, samples: Sequence[FinishedEpisode]) -> bool:
        """Count the samples of a draw. True once too many have ended without asking the model."""
        self.asked = self.asked or any(sample.prompt is not None for sample in samples)
        if not self.asked:
            self.silent += sum(sample.rewarded for sample in samples)
        return not self.asked and self.silent >= MAX_SILENT

    def beyond_chance(self, in_a_row: int) -> bool:
        """True if ``in_a_row`` lost draws of one group are more than chance explains.

        Lost draws of other open groups do not count.
        """
        if in_a_row < FEWEST_LOST:
            return False
        return in_a_row >= MOST_LOST or all_lost_by_chance(self.lost, self.drawn, in_a_row) < CHANCE


def all_lost_by_chance(lost: int, drawn: int, more: int) -> float:
    """The probability that ``more`` further draws are all lost, after ``lost`` of ``drawn`` were."""
    return math.prod((lost + 1 + i) / (drawn + 2 + i) for i in range(more))


MANY_LOST = 20
"""Episodes lost at one line, each in a group with survivors."""


class BiasWatch:
    """Warns once if episodes fail at one line: rewards are then survivors' means."""

    def __init__(self, store: Store, task: int) -> None:
        self._store = store
        self._task = task
        self._episodes: Counter[tuple[str, str]] = Counter()
        self._lost: Counter[tuple[str, str, str, int]] = Counter()

    def see(self, version: str, members: Sequence[FinishedEpisode], component: str = "") -> None:
        key = component, version
        self._episodes[key] += len(members)
        survived = any(member.rewarded for member in members)
        for member in members:
            failure = member.outcome.failure
            if not survived or not member.lost or failure is None or not failure.line:
                continue
            if member.outcome.overloaded or member.outcome.died:
                continue
            place = (*key, failure.file, failure.line)
            self._lost[place] += 1
            if self._lost[place] == MANY_LOST:
                about = f"survivors {version} {failure.file}:{failure.line}"
                self._warn(about, survivors(failure, MANY_LOST, self._episodes[key]))

    def _warn(self, about: str, words: str) -> None:
        try:
            new = self._store.tasks.warn(self._task, about, words)
        except StoreError:
            new = True
        if new:
            self._store.telemetry.event("environment", words, self._task, "warning")


def the_only(failures: Sequence[Failure | None]) -> Failure | None:
    """The common failure if all fail at the same place."""
    first = failures[0] if failures else None
    if first is None or not first.line:
        return None
    alike = (one is not None and (one.file, one.line) == (first.file, first.line) for one in failures)
    return first if all(alike) else None


def survivors(failure: Failure, lost: int, episodes: int) -> str:
    """The warning that some episodes fail at one line."""
    return (
        f"{lost} of {episodes} episodes failed at {failure.file}, line {failure.line} ({failure.message}) each time"
        " that they were played, while others of the same instances ended well. They have no reward, so training does"
        " not learn to avoid what fails. Catch the exception and pay a reward, or declare @env(on_error=0.0)."
    )
