"""What goes wrong in a policy's learning, in words: its name, the figures that show it, and what to do.

Shared by the command line and the terminal application. Takes rows, gives plain safe text.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any

from marlaas.engine.spec import (
    CUT_REPLIES,
    ENTROPY_COLLAPSE,
    EXPLODING_LENGTH,
    FALLING_REWARD,
    GAP_RUNAWAY,
    KL_RUNAWAY,
    LARGE_STEPS,
    NAMES,
    ONE_REPLY,
    REWARD_HACKING,
)

from .format import line, number, score, share
from .lost import lost_briefly, many_lost
from .tasks import shown_reason, shown_state, state_word

if TYPE_CHECKING:
    from marlaas.engine.store import FindingRow, TaskRow

    from .verdict import Verdict

MARK = "!"
"""Beside the state of a task whose learning goes wrong, or that loses episodes; the task runs on."""
Figures = Mapping[str, float]
_LOOKED_AT = ("running", "paused", "done")
"""States of which a mark says more."""


@dataclass(frozen=True)
class Told:
    """A finding in words."""

    policy: str
    """Empty where the task trains only one."""
    step: int
    code: str
    title: str
    """What it is called: Entropy collapse."""
    evidence: str
    """The figures that show it, as a sentence."""
    advice: str
    """What to do, in a sentence or two."""
    rollouts: tuple[int, ...] = ()
    """Ids of the conversations that show it."""
    holds: bool = True
    """Whether it is still so."""

    @property
    def headline(self) -> str:
        """Name, policy and step."""
        whose = f" of {self.policy}" if self.policy else ""
        return f"{self.title}{whose} at step {self.step}{'' if self.holds else ', over by now'}"


def told(finding: FindingRow, several: bool = False) -> Told:
    """A finding in words; ``several``: the task trains several policies, so it must say which."""
    name = NAMES.get(finding.code, finding.code.replace("_", " "))
    shown, advice = _WORDS.get(finding.code, (_figures, ""))
    try:
        evidence = shown(finding.evidence)
    except (KeyError, TypeError, ValueError):  # another version of this program recorded other figures
        evidence = _figures(finding.evidence)
    return Told(
        line(finding.policy, 60) if several else "",
        finding.step,
        finding.code,
        line(name[:1].upper() + name[1:], 60),
        line(evidence, 400),
        advice,
        finding.rollouts,
        finding.holds,
    )


def findings(task: TaskRow) -> list[Told]:
    """All findings about a task's learning, the newest first; what is over comes last."""
    rows = sorted(task.findings, key=lambda one: not one.holds)
    return [told(one, len(task.trained) > 1) for one in rows]


def newest(task: TaskRow, policy: str = "") -> Told | None:
    """The newest finding that still holds; None where there is none. ``policy``: only of this one, of several."""
    return next((one for one in findings(task) if one.holds and policy in ("", one.policy)), None)


def gone_wrong(task: TaskRow, policy: str = "") -> str:
    """That finding with its figures and what to do; empty where there is none."""
    found = newest(task, policy)
    return f"{found.headline}: {found.evidence.rstrip('.')}. {found.advice}".rstrip() if found else ""


def pointed(found: Verdict, task: TaskRow, policy: str, key: str) -> Verdict:
    """A verdict that ``gone_wrong`` gave, with a shorter way to say it, and the key that shows the figures."""
    why = newest(task, policy)
    if why is None:
        return found
    return replace(found, short=f"{why.headline}. {why.advice}".rstrip(), more=f"{key}: evidence")


def goes_wrong(task: TaskRow) -> bool:
    """Whether a task has learned, or learns, in a way that people should look at."""
    return task.state in _LOOKED_AT and any(finding.holds for finding in task.findings)


def state_text(task: TaskRow, serving: bool = True) -> str:
    """Glyph and word of the state that a task is shown in, with a mark where people should look at it."""
    state = shown_state(task, serving)
    word = state_word(state)
    return f"{word} {MARK}" if state == task.state and marked(task) else word


def marked(task: TaskRow) -> bool:
    """Whether its state has a mark: its learning goes wrong, or its environment loses episodes."""
    return goes_wrong(task) or (task.state in _LOOKED_AT and many_lost(task))


def why(task: TaskRow, serving: bool = True) -> str:
    """Why it waits, paused or ended, else what goes wrong in its learning, or how many of its episodes were lost, in a
    few words; empty: nothing."""
    found = newest(task)
    return shown_reason(task, serving) or (found.headline if found else lost_briefly(task))


def fields(task: TaskRow) -> list[tuple[str, str]]:
    """The lines of ``show`` about findings, with the name of each line."""
    lines = []
    for one in findings(task):
        lines += [("finding", one.headline), ("evidence", one.evidence), ("what to do", one.advice)]
        if one.rollouts:
            numbers = ", ".join(map(str, one.rollouts))
            lines.append(("rollouts", f"{numbers}: `marlaas rollouts {task.id} --finding {line(one.code, 40)}`"))
    return lines


def findings_json(task: TaskRow) -> list[dict[str, Any]]:
    """The findings as ``show --json`` has them."""
    return [
        {**asdict(row), "words": words.evidence, "advice": words.advice}
        for row in task.findings
        for words in (told(row),)
    ]


def _figures(found: Figures) -> str:
    return ", ".join(f"{name.replace('_', ' ')} {number(value)}" for name, value in found.items())


def _entropy_collapse(found: Figures) -> str:
    return (
        f"the entropy fell from {number(found['start'])} to {number(found['now'])} nats per token. The best of each"
        f" group now has a reward of {score(found['best'])} on average, and once had {score(found['reached'])}."
    )


def _exploding_length(found: Figures) -> str:
    grown = f"replies grew from {found['start']:.0f} to {found['now']:.0f} tokens on average"
    if "cut" in found:
        return f"{grown}, and the length limit ends {share(found['cut'])} of the episodes."
    return f"{grown}, and the reward stayed at {score(found['reward'])} ({score(found['reward_start'])} at the start)."


def _reward_hacking(found: Figures) -> str:
    return (
        f"the held-out score fell from {score(found['best'])} ± {score(found['best_error'])} at step"
        f" {found['best_step']:.0f} to {score(found['score'])} ± {score(found['error'])}, while the training reward"
        f" went from {score(found['reward_then'])} to {score(found['reward'])}."
    )


def _falling_reward(found: Figures) -> str:
    now, steps = score(found["now"]), f"{found['steps']:.0f}"
    return f"the mean reward is {now}; {steps} steps earlier it was {score(found['best'])}."


def _one_reply(found: Figures) -> str:
    return (
        f"{share(found['share'])} of the episodes have the same reply, over {found['prompts']:.0f} prompts of the last"
        f" steps; the mean reward is {score(found['reward'])}."
    )


def _large_steps(found: Figures) -> str:
    return (
        f"a step changes the log-probability of a token that the policy wrote by {number(found['moved'], 2)} nats on"
        " average; 0.1 is usual."
    )


def _kl_runaway(found: Figures) -> str:
    if "limit" in found:
        return f"the KL divergence is {number(found['now'])} nats per token, and 'watch.kl' is {found['limit']:g}."
    if "far" in found:
        return f"the KL divergence is {number(found['now'])} nats per token: it would hardly ever write that."
    return (
        f"the KL divergence went from {number(found['before'])} to {number(found['now'])} nats per token within"
        " a few steps, and the reward did not rise."
    )


def _gap_runaway(found: Figures) -> str:
    if "gap" in found:
        return (
            f"at the same weights, sampler and trainer differ by {number(found['gap'])} nats per token;"
            f" at the start it was {number(found['gap_start'])}."
        )
    weights = f", so {share(found['ess'])} of the tokens carry the step" if "ess" in found else ""
    return (
        f"the log-probability of a token changes by {number(found['drift'])} nats between its sampling and its"
        f" training{weights}."
    )


def _cut_replies(found: Figures) -> str:
    thoughts = "; the base thinks, and its thoughts count" if found["thinks"] else ""
    return (
        f"{share(found['cut'])} of the first episodes were cut off: `max_tokens` is {found['max_tokens']:.0f} and"
        f" `max_episode_tokens` {found['max_episode_tokens']:.0f}{thoughts}."
    )


_AGAIN = "; its `start` may be a version from before that step."
_WORDS: dict[str, tuple[Callable[[Figures], str], str]] = {
    REWARD_HACKING: (
        _reward_hacking,
        "Compare these held-out replies with rollouts of training: what is paid there that the task does not ask for?"
        " Mend the environment (a leak in its train rows, a grader that can be cheated). The best version is kept.",
    ),
    FALLING_REWARD: (
        _falling_reward,
        f"Begin a new task with a smaller `learning_rate` or `max_staleness`{_AGAIN} Where the environment was changed,"
        " compare the rewards with `marlaas env replay`.",
    ),
    ENTROPY_COLLAPSE: (
        _entropy_collapse,
        "Begin a new task with a smaller `learning_rate`, or with an entropy bonus (`entropy = 0.01` under [train])"
        f"{_AGAIN}",
    ),
    ONE_REPLY: (
        _one_reply,
        "Where that reply is paid well, the environment rewards a constant answer: look at its baseline, and draw other"
        " tasks. Where it is not, begin again with a smaller `learning_rate`.",
    ),
    EXPLODING_LENGTH: (
        _exploding_length,
        'Where long replies are right, raise `max_tokens`. Else set `overlong = "penalty"` with `overlong_buffer`, or'
        " the loss dr_grpo if it has another, and look whether the environment pays for length.",
    ),
    LARGE_STEPS: (
        _large_steps,
        f"Begin a new task with a third of the `learning_rate` or less, or with more groups per step{_AGAIN}",
    ),
    KL_RUNAWAY: (
        _kl_runaway,
        f"Begin a new task with a smaller `learning_rate`, or with a larger `kl` under [train]{_AGAIN}",
    ),
    GAP_RUNAWAY: (
        _gap_runaway,
        "Set a smaller `max_staleness` or `learning_rate`; where the sampler has a smaller copy of the base, finer"
        " `weights` under [rollout].",
    ),
    CUT_REPLIES: (
        _cut_replies,
        'Begin a new task with a larger `max_tokens` (and `max_episode_tokens`) under [sampling]. "auto" chooses'
        " them by the first replies, and later ones may be longer. A base that thinks needs room for its thoughts, or"
        " `thinking = false`.",
    ),
}
