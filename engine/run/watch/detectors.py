"""Signs that learning goes wrong, each found by one pure function.

A function gets all that was recorded (``Learning``), and returns the figures that show the sign, or None. What chance
explains is in ``noise``; the constants here say what matters besides, each with its reason.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import fmean, median

from ...spec import (
    CUT_REPLIES,
    ENTROPY_COLLAPSE,
    EXPLODING_LENGTH,
    FALLING_REWARD,
    GAP_RUNAWAY,
    KL_RUNAWAY,
    LARGE_STEPS,
    ONE_REPLY,
    REWARD_HACKING,
)
from ...store import HeldOutScore
from .course import LENIENT, MEDIUM, WINDOW, Course, Learning, differ, level, mostly, quantile

Evidence = dict[str, float]
"""Figures by name; ``app/words/learning.py`` makes sentences of them."""

COLLAPSED = 0.1
"""The share of its first entropy at which a policy has collapsed. Reward follows entropy as R = b - a·exp(H) (Cui et
al., "The entropy mechanism", arXiv 2505.22617, equation 1), and a·(exp(H) - 1) is what is left to gain: at a tenth of
the entropy a tenth of that at most, because exp is convex."""
CUT = 0.25
"""The share of episodes that the length limit ends from which it decides what is learned: in a group of eight it is two
members, whose rewards are those of half a reply."""
CUT_MORE = 0.15
"""By how much that share must have grown: a task whose limit was tight from the beginning is as its author set it."""
LONGER = 32
"""Tokens by which replies must have grown where it did not help them: less costs too little to speak of."""
TYPICAL_DRIFT = 1.0
"""Nats by which a token's log-probability has typically changed since it was sampled. The typical importance weight is
then e or 1/e, beyond the default ``importance_cap`` of 2: the loss learns from the bound, not from the tokens. Runs of
the shipped base at four times its default learning rate had up to 0.7, and learned all the same."""
GAP = 0.1
"""Nats between sampler and trainer at the same weights: the most that quantised weights are known to cause."""
GROWN = 3.0
"""By which factor that gap must have grown: what a small copy of the base costs from the beginning is no sign."""
MOVED = 0.8
"""Nats by which a step typically changes a token's log-probability, from which it is too large. The KL divergence of
such a step is ½·0.8² = 0.32 at least, ten times the largest target in PPO's own experiments (arXiv 1707.06347, table
1). The shipped base has 0.1 at its default learning rate; at four times that it had 0.7 and learned, at six times that
1.0 and was lost."""
KL_GROWN = 2.0
"""By which factor the distance to the base must grow within ``WINDOW`` steps: steady learning adds, it does not
multiply."""
KL_MORE = 0.5
"""Nats per token by which it must grow there as well: a distance near 0 doubles often."""
FAR = 10.0
"""Nats per token that are too far from the base in any case: it would write such a token once in 22,000 times, so
nothing that it knows is left."""
SAME = 0.9
"""The share of episodes with the same reply from which the policy has one reply for everything."""
FEWEST_PROMPTS = 8
"""Distinct held-out prompts from which two scores are compared at all: the standard error of fewer says little."""


def entropy_collapse(seen: Learning) -> Evidence | None:
    """The policy hardly explores any more, and even the best of its samples no longer reach what they once reached.

    What they reach is the mean reward of the best member of each group. It stays where it was in a policy that has
    solved its task, which is certain as well, and where luck decides: neither is a sign.
    """
    course = seen.course
    start, now = course.first("surprisal"), course.last("surprisal")
    if not _long_enough(course, now) or not start or fmean(now) > COLLAPSED * fmean(start):
        return None
    if not differ(start, now, course.values("surprisal"), level(seen.steps)):
        return None
    fall = _fall(seen, "reward_max")
    if fall is None:
        return None
    return {"start": fmean(start), "now": fmean(now), "reached": fall.before, "best": fall.now}


def exploding_length(seen: Learning) -> Evidence | None:
    """Replies have grown to a multiple of what they were, until the limit cuts them, or without being paid for it."""
    course = seen.course
    start, now = course.first("length"), course.last("length")
    if not _long_enough(course, now) or fmean(now) < seen.watch.length * fmean(start):
        return None
    if not differ(start, now, course.values("length"), level(seen.steps)):
        return None
    evidence = {"start": fmean(start), "now": fmean(now)}
    cut, before = course.last("cut"), course.first("cut")
    if fmean(cut) >= max(CUT, fmean(before) + CUT_MORE):
        return evidence | {"cut": fmean(cut), "cut_start": fmean(before)}
    fair = seen.alone and seen.uniform
    if fair and fmean(now) >= fmean(start) + LONGER and not _rose(course, course.first("reward")):
        return evidence | {"reward": fmean(course.last("reward")), "reward_start": fmean(course.first("reward"))}
    return None


def reward_hacking(seen: Learning) -> Evidence | None:
    """The held-out score has fallen while the training reward has not: what is paid in training is no longer the task.

    The newest score is compared with each earlier one of its series. Each such pair has its part of the allowed error.
    """
    scores = [score for score in seen.scores if score.prompts >= FEWEST_PROMPTS]
    if len(scores) < 2 or not seen.alone:
        return None
    *earlier, newest = scores
    chance = level(max(seen.evaluations, len(scores))) / len(earlier)
    fallen = [one for one in earlier if _fell(one, newest, chance)]
    if not fallen:
        return None
    best = max(fallen, key=lambda one: one.score)
    course = seen.course
    before, now = course.around("reward", best.step), course.last("reward")
    if not now or not before:
        return None
    if fmean(now) < fmean(before) and differ(before, now, course.values("reward"), LENIENT):
        return None
    return {
        "best": best.score,
        "best_step": float(best.step),
        "best_error": best.stderr,
        "score": newest.score,
        "score_step": float(newest.step),
        "error": newest.stderr,
        "reward_then": fmean(before),
        "reward": fmean(now),
    }


def falling_reward(seen: Learning) -> Evidence | None:
    """The training reward has fallen well below what it was over some earlier stretch of steps."""
    fall = _fall(seen, "reward") if seen.alone and seen.uniform else None
    return None if fall is None else {"best": fall.before, "now": fall.now, "steps": float(fall.steps)}


def kl_runaway(seen: Learning) -> Evidence | None:
    """The distance to the base multiplies without a better reward, or is above what the task file allows.

    Medians, for the estimate of a single step can be off by orders of magnitude where the policy is far away.
    """
    course, limit = seen.course, seen.watch.kl
    now, before = course.last("kl"), course.last("kl", WINDOW)
    if not now:
        return None
    if median(now) > (FAR if limit is None else limit):
        return {"now": median(now), "far": FAR} if limit is None else {"now": median(now), "limit": limit}
    if not before or median(now) < max(KL_GROWN * median(before), median(before) + KL_MORE):
        return None
    if _rose(course, course.last("reward", WINDOW)):
        return None
    return {"now": median(now), "before": median(before)}


def gap_runaway(seen: Learning) -> Evidence | None:
    """Tokens are trained on by a policy that is far from the one that wrote them, or sampler and trainer disagree."""
    course = seen.course
    drift, gap, start = course.last("drift_mean"), course.last("gap_mean"), course.first("gap_mean")
    if gap and start and median(gap) >= max(GAP, GROWN * median(start)):
        return {"gap": median(gap), "gap_start": median(start)}
    if drift and median(drift) >= TYPICAL_DRIFT:
        weights = course.last("weight_ess")
        return {"drift": median(drift)} | ({"ess": median(weights)} if weights else {})
    return None


def large_steps(seen: Learning) -> Evidence | None:
    """Each step changes the policy by more than the tokens of one batch can justify."""
    moved = seen.course.last("moved")
    return {"moved": median(moved)} if moved and median(moved) >= MOVED else None


def one_reply(seen: Learning) -> Evidence | None:
    """Nearly all episodes have the same reply, whatever the prompt is.

    Chance is that of a policy which rightly gives this reply to half of the prompts. Steps on one prompt say nothing.
    """
    course = seen.course
    same, prompts = course.last("same_reply"), course.last("first_prompts")
    if not same or min(prompts, default=0.0) < 2:
        return None
    share, count = fmean(same), round(sum(prompts))
    if share < SAME or mostly(share, count) > level(seen.steps):
        return None
    return {"share": share, "prompts": float(count), "reward": fmean(course.last("reward"))}


def cut_replies(seen: Learning) -> Evidence | None:
    """The length limit has cut off many replies from the beginning, and still does: rewards are of half a reply."""
    cut = seen.course.values("cut") or [share for share in (seen.opening,) if share is not None]
    if not cut or fmean(cut[:WINDOW]) <= CUT or fmean(cut[-WINDOW:]) <= CUT:
        return None
    return {"cut": fmean(cut[:WINDOW]), **seen.limits}


DETECTORS: dict[str, Callable[[Learning], Evidence | None]] = {
    REWARD_HACKING: reward_hacking,
    FALLING_REWARD: falling_reward,
    ENTROPY_COLLAPSE: entropy_collapse,
    ONE_REPLY: one_reply,
    EXPLODING_LENGTH: exploding_length,
    LARGE_STEPS: large_steps,
    KL_RUNAWAY: kl_runaway,
    GAP_RUNAWAY: gap_runaway,
    CUT_REPLIES: cut_replies,
}
"""By what task files call what is found."""


def found(seen: Learning) -> dict[str, Evidence]:
    """All signs that are there now and that the task does not ignore."""
    wanted = (code for code in DETECTORS if code not in seen.watch.ignore)
    return {code: evidence for code in wanted if (evidence := DETECTORS[code](seen)) is not None}


def _long_enough(course: Course, now: Sequence[float]) -> bool:
    """Whether the last steps are others than the first, with as many between: else noise cannot be told from change."""
    return bool(now) and course.seen >= 3 * WINDOW


@dataclass(frozen=True)
class _Fall:
    """How far a metric of rewards is below its best stretch of ``WINDOW`` steps."""

    before: float
    now: float
    steps: int
    """Between the two."""


def _fall(seen: Learning, name: str) -> _Fall | None:
    """How far a metric of rewards has fallen; None where chance explains it, or where it does not matter.

    The last steps are compared with the first ones and with each stretch between. Each comparison has its part of the
    allowed error, because the best is chosen.
    """
    course, values = seen.course, seen.course.values(name)
    begins = [0, *range(len(values) % WINDOW, len(values) - WINDOW, WINDOW)]
    stretches = [values[begin : begin + WINDOW] for begin in begins]
    if len(stretches) < 3:
        return None
    now, best = values[-WINDOW:], max(stretches, key=fmean)
    spreads = (*course.blocks("reward_spread"), fmean(course.first("reward_spread") or (0.0,)))
    if fmean(best) - fmean(now) <= MEDIUM * max(spreads):
        return None
    if not differ(best, now, values, level(seen.steps) / len(stretches)):
        return None
    return _Fall(fmean(best), fmean(now), len(values) - WINDOW - begins[stretches.index(best)])


def _rose(course: Course, before: Sequence[float]) -> bool:
    """Whether the reward of the last steps is above that ``before``, as far as a single comparison can say."""
    now = course.last("reward")
    if not now or not before:
        return False
    return fmean(now) > fmean(before) and differ(before, now, course.values("reward"), LENIENT)


def _fell(before: HeldOutScore, now: HeldOutScore, chance: float) -> bool:
    """Whether a score is below an earlier one by more than its prompts explain.

    The two were measured on the same prompts, which makes their difference surer than two independent standard errors
    say; so this errs on the safe side.
    """
    error = math.hypot(before.stderr, now.stderr)
    freedom = min(before.prompts, now.prompts) - 1
    return before.score - now.score > error * quantile(chance, freedom)
