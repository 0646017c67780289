"""The reasons with which a run ends before its last step: its task then has a state and a sentence, not a crash."""

from __future__ import annotations

from collections.abc import Sequence

from ...errors import Fruitless, Paused
from ...rollout import Played
from ...training import RewardSummary
from ...trajectories import Failure

SOLVED = 1.0
"""The reward of a perfect reply, where an environment pays as most do: from 0 to 1."""
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


def all_lost(draws: int, played: Sequence[Played], environment: str, index: int, component: str = "") -> Paused:
    """The error for a group number whose draws lose all of their members.

    ``index``: the instance of the last draw; ``component``: of a mixture, which.
    """
    which = f" {component}" if component else ""
    return Paused(
        f"The environment{which} failed {draws} groups in a row: {first_failure(played)}.",
        f"`marlaas env play {environment} --index {index}` plays the last of them; instances have no largest number.",
    )


def too_few(draws: int, wanted: int, played: Sequence[Played], component: str = "") -> Paused:
    """The error for draws, one after the other, that lose more members than a group of ``wanted`` can do without."""
    on = f" on {component}" if component else ""
    return Paused(
        f"In {draws} draws in a row{on} fewer than {wanted} of {len(played)} members had a reward:"
        f" {first_failure(played)}.",
        "Catch the exception and pay a reward, declare `on_error`, or lower 'train.min_members'.",
    )


def first_failure(played: Sequence[Played]) -> str:
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
