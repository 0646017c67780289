"""Does a task learn? The verdict, its evidence, and what to do."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from statistics import fmean, pvariance
from typing import Any

from marlaas.engine.spec.task import (
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
from marlaas.engine.store.rows import FindingRow, TaskRow

from .format import counted, line, number, score, share
from .scores import with_error
from .tasks import lost_briefly, many_lost, short_name, shown_reason, shown_state, state_word

# One sentence on a task: is it learning, and if it is not, why. Pure: recorded numbers in, words out.
#
# A change counts if it is larger than its noise: a held-out score's by ``_SIGMAS`` standard errors of the
# difference (each score brings its own, over its prompts), a reward's by ``_STUDENT`` standard errors between the
# means of its first and of its last steps (Welch 1947; Student's t with eight degrees of freedom or more is 2.3 at
# 97.5 %).

_SIGMAS = 2.0
_STUDENT = 2.3
_WINDOW = 5
"""Steps at either end whose rewards are compared."""
_MOST_WINDOW = 50
_EQUAL = 0.8
"""Share of groups with equal rewards that explains a flat reward."""
_SOME_EQUAL = 0.5
_SOLVED = 0.95
"""Reward of a solved task, on a scale of 0 to 1."""
_FAILING = 0.2
_CUT = 0.3
_DECIDED = 0.05
"""Entropy in nats a token below which a policy explores nothing."""
_FEW_COUNT = 0.3
"""Effective share of tokens below which most do not count."""
_STANDING = 0.005
"""Change of a token's log-probability a step, in nats, below which the policy stands still."""


@dataclass(frozen=True)
class Verdict:
    """What to say of a task, and how it looks."""

    tone: str = "none"
    """good, fair (worth a look), bad, or none (nothing is known)."""
    words: str = ""
    """The finding, then what helps."""
    short: str = ""
    """Without figures; empty: there is no shorter form."""
    more: str = ""
    """The key that shows more; always shown."""

    @property
    def glyph(self) -> str:
        return {"good": "▲", "fair": "●", "bad": "▼"}.get(self.tone, "·")


@dataclass(frozen=True)
class Score:
    """A held-out score of the newest series."""

    step: int
    score: float
    error: float
    """Standard error."""


@dataclass(frozen=True)
class Evidence:
    """The record of a task or policy."""

    state: str = "running"
    step: int = 0
    steps: int = 1
    reward_steps: Sequence[int] = ()
    """Ascending."""
    rewards: Sequence[float] = ()
    """Means at these steps."""
    scores: Sequence[Score] = ()
    """By step."""
    unmeasured: tuple[int, int] | None = None
    """(failed, all) episodes of a newest evaluation without a score."""
    baseline: float | None = None
    """Of the best constant answer."""
    recent: Mapping[str, float] = field(default_factory=dict)
    """Means over the last steps."""
    measured: Sequence[tuple[str, Score | None]] | None = None
    """Of an evaluation: each version with its score."""
    lost: str = ""
    """Episodes without a reward, in a few words; empty: hardly any."""
    both_sides: bool = False
    """True if it trains as agents that play against each other: one wins what the other loses."""


@dataclass(frozen=True)
class _Trend:
    first: float
    last: float
    sure: bool
    """True if the difference exceeds its noise."""
    steps: int
    """Between the two."""

    @property
    def way(self) -> str:
        """up, down or flat."""
        return ("up" if self.last > self.first else "down") if self.sure else "flat"

    def __str__(self) -> str:
        return f"{score(self.first)} → {score(self.last)}"


def verdict(seen: Evidence, finding: str = "") -> Verdict:
    """What to show first. ``finding``: a known trouble, which comes before all."""
    if finding:
        return Verdict("bad", finding)
    found = _of_course(seen)
    if seen.state == "blocked" and seen.step:
        until = f"Blocked at step {seen.step}. Until then "
        found = Verdict("bad", *(text and until + text[0].lower() + text[1:] for text in (found.words, found.short)))
    if not seen.lost:
        return found
    return Verdict("fair" if found.tone == "good" else found.tone, f"{found.words} {seen.lost}.")


def _of_course(seen: Evidence) -> Verdict:
    if seen.measured is not None:
        return _of_evaluation(seen.measured, seen.state)
    if not seen.step and not seen.rewards:
        return _before_a_step(seen)
    if seen.unmeasured is not None:
        failed, played = seen.unmeasured
        words = f"Held-out cannot be measured: {failed} of {played} episodes failed. Mend the environment."
        return Verdict("bad", words)
    held, reward = held_out_trend(seen.scores), reward_trend(seen.reward_steps, seen.rewards)
    if seen.both_sides:
        return _by_held_out(seen, held)
    beside = _beside(seen)
    if held is not None and held.way != "flat":
        return _rises(seen, held) if held.way == "up" else _falls(held, beside)
    if reward is None:
        return _too_early(seen, held)
    if held is not None and beside is not None and beside.way == "up":
        return _only_reward(seen, held, beside)
    if reward.way == "up":
        begins = "Learned" if seen.state == "done" else "Learning"
        known = f"held-out {score(seen.scores[-1].score)} so far" if seen.scores else "held-out is not measured"
        return Verdict("good", f"{begins}: {_reward_over(reward)}; {known}.")
    if reward.way == "down":
        return Verdict("bad", f"Getting worse: {_reward_over(reward)}. A smaller `learning_rate` may help.")
    return _flat(seen, reward)


def _by_held_out(seen: Evidence, held: _Trend | None) -> Verdict:
    """Self-play: the mean reward stays, however well the policy plays."""
    why = "The mean reward says nothing: one policy acts as both sides."
    if held is None:
        known = f"held-out {score(seen.scores[-1].score)}" if seen.scores else "held-out is not measured yet"
        return Verdict("none", f"Too early to tell: {known}. {why}")
    if held.way == "flat":
        over = f"held-out {held} in {counted(held.steps, 'step')}, within its noise (± {score(seen.scores[-1].error)})"
        return Verdict("fair", f"Not clear yet: {over}. More `prompts` under [eval] measure it better. {why}")
    found = _rises(seen, held) if held.way == "up" else _falls(held, None)
    return Verdict(found.tone, f"{found.words} {why}")


def held_out_trend(scores: Sequence[Score]) -> _Trend | None:
    """First score to newest; None before the second."""
    if len(scores) < 2:
        return None
    first, last = scores[0], scores[-1]
    return _Trend(first.score, last.score, _differ(first, last), last.step - first.step)


def reward_trend(steps: Sequence[int], rewards: Sequence[float]) -> _Trend | None:
    """Mean of the first fifth to that of the last; None for fewer than five steps each."""
    width = min(_MOST_WINDOW, max(_WINDOW, len(rewards) // 5))
    first, last = (_tame(part) for part in (rewards[:width], rewards[-width:]))
    if len(rewards) < 2 * width or min(len(first), len(last)) < _WINDOW:
        return None
    noise = math.sqrt(pvariance(first) / (len(first) - 1) + pvariance(last) / (len(last) - 1))
    difference = fmean(last) - fmean(first)
    sure = abs(difference) > _STUDENT * noise and abs(difference) > 1e-9
    return _Trend(fmean(first), fmean(last), sure, steps[-1] - steps[0] + 1)


def _beside(seen: Evidence) -> _Trend | None:
    """The reward's trend over the steps of the scores."""
    if len(seen.scores) < 2:
        return None
    begin = bisect_right(seen.reward_steps, seen.scores[0].step)
    end = bisect_right(seen.reward_steps, seen.scores[-1].step)
    return reward_trend(seen.reward_steps[begin:end], seen.rewards[begin:end])


def _tame(values: Sequence[float]) -> list[float]:
    """Finite values that arithmetic survives."""
    return [min(1e100, max(-1e100, value)) for value in values if math.isfinite(value)]


def _differ(one: Score, other: Score) -> bool:
    return abs(one.score - other.score) > _SIGMAS * math.hypot(one.error, other.error)


def _of_evaluation(measured: Sequence[tuple[str, Score | None]], state: str) -> Verdict:
    scores = [(found.score, name) for name, found in measured if found is not None]
    done = f"{len(scores)} of {counted(len(measured), 'version')}"
    if not scores:
        return Verdict("none", f"Nothing measured yet: {done}.")
    best, name = max(scores)
    so_far = "" if state == "done" else " so far"
    return Verdict("good", f"Measured {done}; the best{so_far}: {name}, {score(best)}.")


def _before_a_step(seen: Evidence) -> Verdict:
    waits = Verdict("none", "Not begun: it waits for its turn.")
    known = {
        "blocked": Verdict("bad", "Blocked before its first step."),
        "running": Verdict("none", "No step yet: the first comes when enough groups are complete."),
        "submitted": waits,
        "queued": waits,
        "waiting": Verdict("none", "No step yet: it is waiting for the engine."),
        "paused": Verdict("fair", "Paused before its first step."),
        "failed": Verdict("bad", "Failed before its first step."),
    }
    return known.get(seen.state, Verdict("none", "It ended before its first step."))


def _rises(seen: Evidence, held: _Trend) -> Verdict:
    newest, best = seen.scores[-1], max(seen.scores, key=lambda one: one.score)
    over = f"held-out {held} in {counted(held.steps, 'step')}"
    if best.score > newest.score and _differ(best, newest):
        peak = f"held-out {score(held.first)} → {score(best.score)} at step {best.step:,}, now {score(newest.score)}"
        return Verdict("fair", f"It was better before: {peak}. The version of step {best.step:,} is kept as the best.")
    begins = "Learned" if seen.state == "done" else "Learning"
    if seen.baseline is None:
        return Verdict("good", f"{begins}: {over}.")
    constant = f"the best constant answer gets {score(seen.baseline)}"
    if newest.score - seen.baseline <= _SIGMAS * newest.error:
        return Verdict("fair", f"{begins}, but no better yet than one answer for all: {over}; {constant}.")
    return Verdict("good", f"{begins}: {over}; {constant}.")


def _falls(held: _Trend, reward: _Trend | None) -> Verdict:
    if reward is not None and reward.way == "up":
        words = f"It learns something else: reward {reward}, held-out {held}."
        return Verdict("bad", f"{words} Read rollouts: the reward may pay for a trick.")
    over = f"held-out {held} in {counted(held.steps, 'step')}"
    return Verdict("bad", f"Getting worse: {over}. A smaller `learning_rate` may help.")


def _too_early(seen: Evidence, held: _Trend | None) -> Verdict:
    known = _tame(seen.rewards[-_WINDOW:])
    mean = f", reward {score(fmean(known))}" if known else ""
    measured = f", held-out {held}" if held is not None else ""
    begins = "Too early to tell" if seen.state in ("running", "queued", "submitted", "paused") else "Too short to tell"
    return Verdict("none", f"{begins}: {counted(seen.step, 'step')} of {seen.steps:,}{mean}{measured}.")


def _only_reward(seen: Evidence, held: _Trend, reward: _Trend) -> Verdict:
    stays = f"held-out stays at {score(held.last)} ± {score(seen.scores[-1].error)}"
    helps = "The training prompts may be learned by heart: more of them help."
    return Verdict("fair", f"Only the reward rises: {_reward_over(reward)}; {stays}. {helps}")


def _reward_over(reward: _Trend) -> str:
    return f"reward {reward} in {counted(reward.steps, 'step')}"


def _flat(seen: Evidence, reward: _Trend) -> Verdict:
    """The likeliest cause of a flat reward, by the last steps."""
    recent = {name: mean for name, mean in seen.recent.items() if math.isfinite(mean)}
    failing, equal, cut = _failing(recent), recent.get("no_signal", 0.0), recent.get("cut", 0.0)
    entropy, counting = recent.get("entropy", 1.0), recent.get("weight_ess", 1.0)
    solved = _SOLVED <= reward.last <= 1.0 + 1e-9 and (
        equal >= _SOME_EQUAL or reward.last >= _SOLVED * seen.recent.get("reward_max", 1.0)
    )
    flat = f"Flat at {score(reward.last)}:"
    causes = (
        (failing >= _FAILING, "bad", f"{flat} {share(failing)} of the episodes fail. Mend the environment."),
        (solved, "fair", f"Solved: the reward stays at {score(reward.last)}. Harder prompts would teach more."),
        (cut >= _CUT, "bad", f"{flat} the length limit ends {share(cut)} of the replies. Raise `max_tokens`."),
        (
            equal >= _EQUAL,
            "bad",
            f"{flat} in {share(equal)} of the groups all rewards are equal, which teaches nothing."
            " Pay for parts of the way, or begin with easier prompts.",
        ),
        (
            entropy < _DECIDED,
            "bad",
            f"{flat} the policy tries nothing new (entropy {entropy:.3f})."
            " Begin anew with a smaller `learning_rate`, or with `entropy`.",
        ),
        (
            counting < _FEW_COUNT,
            "bad",
            f"{flat} tokens are too stale, {share(counting)} of them count. Lower `max_staleness`.",
        ),
        (
            recent.get("moved", 1.0) < _STANDING,
            "bad",
            f"{flat} a step hardly moves the policy. Raise `learning_rate`.",
        ),
        (
            equal >= _SOME_EQUAL,
            "fair",
            f"{flat} in {share(equal)} of the groups all rewards are equal."
            " Larger groups, or prompts that are solved sometimes, help.",
        ),
        (
            True,
            "fair",
            f"Flat: {_reward_over(reward)}, which is within its noise."
            " More steps or a larger `learning_rate` would show.",
        ),
    )
    return next(Verdict(tone, words) for holds, tone, words in causes if holds)


def _failing(recent: Mapping[str, float]) -> float:
    """The share of episodes without a reward; a step's tokens divided by their mean length is its episodes."""
    episodes = recent["tokens"] / recent["length"] if recent.get("length") and "tokens" in recent else 0.0
    return min(1.0, recent.get("errors", 0.0) / episodes) if episodes else 0.0


MARK = "!"
"""Next to the state of a task that needs a look; the task runs on."""
REASON_CELLS = 160
"""Cells of a reason in the list; ``show`` has all of it."""
_LOOKED_AT = ("running", "paused", "done")
"""States that can have the mark."""


@dataclass(frozen=True)
class Told:
    """A finding in words."""

    headline: str
    """Name, policy and step, such as Entropy collapse at step 8."""
    evidence: str
    """The figures in a sentence."""
    advice: str
    """What to do."""
    code: str
    rollouts: tuple[int, ...]
    """Conversations that show it."""
    holds: bool
    """True while it lasts."""


def told(finding: FindingRow, several: bool = False) -> Told:
    """``several``: name the policy."""
    name = NAMES.get(finding.code, finding.code.replace("_", " "))
    texts, advice = _WORDS.get(finding.code, ((), ""))
    evidence = ", ".join(f"{key.replace('_', ' ')} {number(value)}" for key, value in finding.evidence.items())
    for text in texts:  # none of them where another version of this program recorded other figures
        with suppress(KeyError, TypeError, ValueError):
            evidence = text.format_map({key: _Figure(value) for key, value in finding.evidence.items()})
            break
    whose = f" of {line(finding.policy, 60)}" if several else ""
    over = "" if finding.holds else ", over by now"
    headline = f"{line(name[:1].upper() + name[1:], 60)}{whose} at step {finding.step}{over}"
    return Told(headline, line(evidence, 400), advice, finding.code, finding.rollouts, finding.holds)


def findings(task: TaskRow) -> list[Told]:
    """Newest first; past ones last."""
    rows = sorted(task.findings, key=lambda one: not one.holds)
    return [told(one, len(task.trained) > 1) for one in rows]


def newest(task: TaskRow, policy: str = "") -> Told | None:
    """The newest lasting finding, or None. ``policy``: of this one only."""
    row = next((row for row in task.findings if row.holds and policy in ("", row.policy)), None)
    return told(row, len(task.trained) > 1) if row else None


def gone_wrong(task: TaskRow, policy: str = "") -> str:
    """The newest finding with figures and advice; empty if there is none."""
    found = newest(task, policy)
    return f"{found.headline}: {found.evidence.rstrip('.')}. {found.advice}".rstrip() if found else ""


def pointed(found: Verdict, task: TaskRow, policy: str, key: str) -> Verdict:
    """A verdict of ``gone_wrong`` with a short form and the key for its figures."""
    why = newest(task, policy)
    if why is None:
        return found
    return replace(found, short=f"{why.headline}. {why.advice}".rstrip(), more=f"{key}: evidence")


def goes_wrong(task: TaskRow) -> bool:
    """Whether a task has learned, or learns, in a way that people should look at."""
    return task.state in _LOOKED_AT and any(finding.holds for finding in task.findings)


def state_text(task: TaskRow, serving: bool = True) -> str:
    """Glyph and word of the shown state, with the mark."""
    state = shown_state(task, serving)
    word = state_word(state)
    return f"{word} {MARK}" if state == task.state and marked(task) else word


def marked(task: TaskRow) -> bool:
    """True if the learning goes wrong or episodes are lost."""
    return goes_wrong(task) or (task.state in _LOOKED_AT and many_lost(task))


def why(task: TaskRow, serving: bool = True) -> str:
    """The reason of its state, else a finding, else lost episodes; empty: none."""
    found = newest(task)
    return shown_reason(task, serving) or (found.headline if found else lost_briefly(task))


def list_cells(task: TaskRow, serving: bool = True) -> tuple[str, ...]:
    """A row of the list of tasks: number, tenant, name, environment, state, step, reward, held-out score, reason."""
    return (
        str(task.id),
        line(task.tenant, 24),
        short_name(task, 32),
        line(task.environment, 24),
        state_text(task, serving),
        f"{task.step}/{task.steps}",
        score(task.reward),
        with_error(task.score, task.basis),
        line(why(task, serving), REASON_CELLS),
    )


def fields(task: TaskRow) -> list[tuple[str, str]]:
    """(label, line) for ``show``."""
    lines = []
    for one in findings(task):
        lines += [("finding", one.headline), ("evidence", one.evidence), ("what to do", one.advice)]
        if one.rollouts:
            numbers = ", ".join(map(str, one.rollouts))
            lines.append(("rollouts", f"{numbers}: `marlaas rollouts {task.id} --finding {line(one.code, 40)}`"))
    return lines


def findings_json(task: TaskRow) -> list[dict[str, Any]]:
    """For ``show --json``."""
    return [
        {**asdict(row), "words": words.evidence, "advice": words.advice}
        for row in task.findings
        for words in (told(row),)
    ]


class _Figure(float):
    """A figure with the formats ``score``, ``share``, ``number``, ``moved``, ``thinks`` and ``none``."""

    def __format__(self, spec: str) -> str:
        return _PRINTED[spec](self) if spec in _PRINTED else super().__format__(spec)


_PRINTED: dict[str, Callable[[float], str]] = {
    "score": score,
    "share": share,
    "number": number,
    "moved": lambda value: number(value, 2),
    "thinks": lambda value: "; the base thinks, and its thoughts count" if value else "",
    "none": lambda value: "",
}
_AGAIN = "; its `start` may be a version from before that step."
_WORDS: dict[str, tuple[tuple[str, ...], str]] = {
    REWARD_HACKING: (
        (
            "the held-out score fell from {best:score} ± {best_error:score} at step {best_step:.0f} to {score:score} ±"
            " {error:score}, while the training reward went from {reward_then:score} to {reward:score}.",
        ),
        "Compare these held-out replies with rollouts of training: what is paid there that the task does not ask for?"
        " Mend the environment (a leak in its train rows, a grader that can be cheated). The best version is kept.",
    ),
    FALLING_REWARD: (
        ("the mean reward is {now:score}; {steps:.0f} steps earlier it was {best:score}.",),
        f"Begin a new task with a smaller `learning_rate` or `max_staleness`{_AGAIN} Where the environment was changed,"
        " compare the rewards with `marlaas env replay`.",
    ),
    ENTROPY_COLLAPSE: (
        (
            "the entropy fell from {start:number} to {now:number} nats per token. The best of each group now has a"
            " reward of {best:score} on average, and once had {reached:score}.",
        ),
        "Begin a new task with a smaller `learning_rate`, or with an entropy bonus (`entropy = 0.01` under [train])"
        f"{_AGAIN}",
    ),
    ONE_REPLY: (
        (
            "{share:share} of the episodes have the same reply, over {prompts:.0f} prompts of the last steps; the mean"
            " reward is {reward:score}.",
        ),
        "Where that reply is paid well, the environment rewards a constant answer: look at its baseline, and draw other"
        " tasks. Where it is not, begin again with a smaller `learning_rate`.",
    ),
    EXPLODING_LENGTH: (
        (
            "replies grew from {start:.0f} to {now:.0f} tokens on average, and the length limit ends {cut:share} of the"
            " episodes.",
            "replies grew from {start:.0f} to {now:.0f} tokens on average, and the reward stayed at {reward:score}"
            " ({reward_start:score} at the start).",
        ),
        'Where long replies are right, raise `max_tokens`. Else set `overlong = "penalty"` with `overlong_buffer`, or'
        " the loss dr_grpo if it has another, and look whether the environment pays for length.",
    ),
    LARGE_STEPS: (
        (
            "a step changes the log-probability of a token that the policy wrote by {moved:moved} nats on average; 0.1"
            " is usual.",
        ),
        f"Begin a new task with a third of the `learning_rate` or less, or with more groups per step{_AGAIN}",
    ),
    KL_RUNAWAY: (
        (
            "the KL divergence is {now:number} nats per token, and 'watch.kl' is {limit:g}.",
            "the KL divergence is {now:number} nats per token: it would hardly ever write that.{far:none}",
            "the KL divergence went from {before:number} to {now:number} nats per token within a few steps, and the"
            " reward did not rise.",
        ),
        f"Begin a new task with a smaller `learning_rate`, or with a larger `kl` under [train]{_AGAIN}",
    ),
    GAP_RUNAWAY: (
        (
            "at the same weights, sampler and trainer differ by {gap:number} nats per token; at the start it was"
            " {gap_start:number}.",
            "the log-probability of a token changes by {drift:number} nats between its sampling and its training, so"
            " {ess:share} of the tokens carry the step.",
            "the log-probability of a token changes by {drift:number} nats between its sampling and its training.",
        ),
        "Set a smaller `max_staleness` or `learning_rate`; where the sampler has a smaller copy of the base, finer"
        " `weights` under [rollout].",
    ),
    CUT_REPLIES: (
        (
            "{cut:share} of the first episodes were cut off: `max_tokens` is {max_tokens:.0f} and `max_episode_tokens`"
            " {max_episode_tokens:.0f}{thinks:thinks}.",
        ),
        'Begin a new task with a larger `max_tokens` (and `max_episode_tokens`) under [sampling]. "auto" chooses'
        " them by the first replies, and later ones may be longer. A base that thinks needs room for its thoughts, or"
        " `thinking = false`.",
    ),
}
