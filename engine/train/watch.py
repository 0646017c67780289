"""Detects learning problems of a policy, with evidence, and notifies people."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import islice, pairwise
from statistics import NormalDist, fmean, median

from ..errors import Fruitless
from ..machine.services import Services
from ..spec.automatic import as_number
from ..spec.task import (
    CUT_REPLIES,
    ENTROPY_COLLAPSE,
    EXPLODING_LENGTH,
    FALLING_REWARD,
    GAP_RUNAWAY,
    KL_RUNAWAY,
    LARGE_STEPS,
    NAMES as CALLED,
    ONE_REPLY,
    REWARD_HACKING,
    TaskSpec,
    WatchSpec,
    components_of,
)
from ..store.rows import NewFinding
from ..store.versions import HeldOutScore, Said, StepSeen
from ..trainer.advantages import ClosedGroup
from .evaluation import deciding
from .opening import TrainedPolicy

# Each of a run's tests gets an equal part of its error (Bonferroni).

ALARMS = 0.01
"""Largest share of runs with a false alarm of one kind."""
LENIENT = 0.01
MEDIUM = 0.5
"""Standard deviations of a value that matter: a medium effect in Cohen, "Statistical power analysis", 1988."""


def level(looks: int) -> float:
    """The error of each test."""
    return ALARMS / max(1, looks)


def noise(values: Sequence[float]) -> float:
    """Standard deviation of two or more values around a slowly changing mean.

    Neighbours' mean squared difference is twice the variance (von Neumann et al., 1941).
    """
    return math.sqrt(fmean((after - before) ** 2 for before, after in pairwise(values)) / 2)


def quantile(chance: float, freedom: float) -> float:
    """Student's t at upper tail ``chance``, in (0, 0.5).

    Cornish-Fisher expansion to second order (Abramowitz and Stegun, 26.7.5): too small for few degrees of freedom,
    callers have at least nine.
    """
    z = -NormalDist().inv_cdf(chance)
    first = (z**3 + z) / 4
    second = (5 * z**5 + 16 * z**3 + 3 * z) / 96
    return z + first / freedom + second / freedom**2


def differ(before: Sequence[float], after: Sequence[float], over: Sequence[float], chance: float) -> bool:
    """True if two means differ by more than the noise of ``over``.

    False if ``over`` is too short. ``chance``: one-sided error.
    """
    if len(over) < 3:
        return False
    apart = abs(fmean(after) - fmean(before))
    error = noise(over) * math.sqrt(1 / len(before) + 1 / len(after))
    freedom = 2 / 3 * (len(over) - 1)  # neighbouring differences share a value, which costs a third of them
    return apart > error * quantile(chance, freedom)


def mostly(share: float, count: int) -> float:
    """The chance that ``share`` of ``count`` fair draws agree.

    Chernoff and Hoeffding's bound (1963): exp(-count · KL(share ‖ 1/2)).
    """
    if share <= 0.5:
        return 1.0
    rest = 1.0 - share
    divergence = share * math.log(2 * share) + (rest * math.log(2 * rest) if rest > 0.0 else 0.0)
    return math.exp(-count * divergence)


# Steps before a change of the environment are left out: rewards are not comparable.

WINDOW = 5
"""Steps per mean. 64 rewards of 0 or 1 have a standard error of up to 0.06; over five steps 0.03."""
LATELY = 256
NAMES = (
    "reward",
    "reward_max",
    "reward_spread",
    "entropy",
    "surprisal",
    "same_reply",
    "first_prompts",
    "length",
    "cut",
    "kl",
    "drift_mean",
    "gap_mean",
    "moved",
    "weight_ess",
    "tokens",
)
OF_PASSES = ("drift_mean", "weight_ess")
"""Left out without a signal; version 0.1 recorded meaningless values."""


@dataclass
class Course:
    """A policy's metrics: of its first ``WINDOW`` steps, and of the last ``LATELY``."""

    environment_version: str = ""
    steps: dict[int, dict[str, float]] = field(default_factory=dict)

    @classmethod
    def of(cls, steps: Iterable[StepSeen]) -> Course:
        course = cls()
        for one in steps:
            course.see(one.step, one.environment_version, one.metrics)
        return course

    def see(self, step: int, environment_version: str, metrics: Mapping[str, float]) -> None:
        if environment_version != self.environment_version:
            self.environment_version, self.steps = environment_version, {}
        if metrics.get("tokens", 0.0) > 0.0:
            self.steps[step] = {}
            unknown = OF_PASSES if metrics.get("entropy") == 0.0 else ()
            self.add(step, {name: value for name, value in metrics.items() if name not in unknown})
            if len(self.steps) > WINDOW + LATELY:
                del self.steps[[*self.steps][WINDOW]]

    def add(self, step: int, metrics: Mapping[str, float]) -> None:
        if step in self.steps:
            known = {name: value for name, value in metrics.items() if name in NAMES and math.isfinite(value)}
            self.steps[step] |= known

    @property
    def newest(self) -> int:
        return next(reversed(self.steps), 0)

    def values(self, name: str) -> list[float]:
        return [one[name] for one in self.steps.values() if name in one]

    def first(self, name: str) -> list[float]:
        return [one[name] for one in islice(self.steps.values(), WINDOW) if name in one]

    def last(self, name: str, before: int = 0) -> list[float]:
        newest_first = self.values(name)[::-1][before : before + WINDOW]
        return newest_first[::-1] if len(newest_first) == WINDOW else []

    def around(self, name: str, step: int) -> list[float]:
        led = [one[name] for number, one in self.steps.items() if step - WINDOW < number <= step and name in one]
        return led if len(led) == WINDOW else self.first(name)

    def blocks(self, name: str) -> list[float]:
        """Means over ``WINDOW`` steps, counted from the newest; oldest first."""
        found = self.values(name)
        begin = len(found) % WINDOW
        return [fmean(found[place : place + WINDOW]) for place in range(begin, len(found), WINDOW)]


@dataclass(frozen=True)
class Learning:
    """The detectors' input."""

    course: Course
    scores: tuple[HeldOutScore, ...] = ()
    """Newest series, by step."""
    watch: WatchSpec = field(default_factory=WatchSpec)
    steps: int = 60
    evaluations: int = 8
    alone: bool = True
    """True without an opponent pool or another trained policy."""
    uniform: bool = True
    """True if all rows have equal probability: early and late rewards are comparable."""
    opening: float | None = None
    """Share of cut off first replies, until the first step."""
    limits: Mapping[str, float] = field(default_factory=dict)
    """Token limits of reply and episode, by key; ``thinks`` if thoughts count."""


MOST = 3
"""Nobody reads ten."""


def chosen(code: str, said: Sequence[Said], before: Sequence[Said] = ()) -> tuple[int, ...]:
    """Up to three rollouts that show a finding, from different groups if possible.

    - Entropy collapse, one reply: the commonest reply.
    - Exploding length, replies cut off: the longest; first those cut.
    - Reward hacking: held-out prompts with the largest loss since ``before``.
    - Others: the lowest reward.
    """
    if code in (ENTROPY_COLLAPSE, ONE_REPLY):
        commonest = dict(Counter(one.replies for one in said).most_common(1))
        return _first([one for one in said if one.replies in commonest])
    if code in (EXPLODING_LENGTH, CUT_REPLIES):
        return _first(sorted(said, key=lambda one: (one.cut, len(one.replies)), reverse=True))
    best = {one.group: _reward(one) for one in sorted(before, key=_reward) if one.reward is not None}
    paid = [one for one in said if one.reward is not None]
    return _first(
        sorted(paid, key=lambda one: _reward(one) - best.get(one.group, _reward(one) * (code == REWARD_HACKING)))
    )


def _reward(one: Said) -> float:
    return one.reward if one.reward is not None else 0.0


def _first(said: Sequence[Said]) -> tuple[int, ...]:
    leading: dict[int, Said] = {}
    for one in said:
        leading.setdefault(one.group, one)
    first = {one.id for one in leading.values()}
    in_order = [*leading.values(), *(one for one in said if one.id not in first)]
    return tuple(one.id for one in in_order[:MOST])


# Detectors return a problem's figures, or None.

Evidence = dict[str, float]

COLLAPSED = 0.1
"""Reward follows entropy as R = b - a·exp(H) (Cui et al., arXiv 2505.22617, equation 1): at a tenth of the entropy at
most a tenth is left to gain."""
CUT = 0.25
"""Two of eight episodes."""
CUT_MORE = 0.15
"""A limit tight from the beginning is the author's choice."""
LONGER = 32
"""In tokens: less costs too little."""
TYPICAL_DRIFT = 1.0
"""Nats per token since sampling. The importance weight is then e or 1/e, beyond the default ``importance_cap`` of 2.
The shipped base learned with up to 0.7."""
GAP = 0.1
"""Nats between sampler and trainer: quantised weights cause at most this."""
GROWN = 3.0
"""Factor of that gap's growth: a small copy's constant gap is normal."""
MOVED = 0.8
"""Nats per token and step. Such a step's KL divergence is at least ½·0.8² = 0.32, ten times the largest target in the
PPO paper (arXiv 1707.06347, table 1). The shipped base learned with 0.7 and failed with 1.0."""
KL_GROWN = 2.0
"""Growth of the distance to the base within ``WINDOW`` steps: steady learning is linear."""
KL_MORE = 0.5
"""In nats per token: a distance near 0 doubles often."""
FAR = 10.0
"""Nats per token: the base would write it once in 22,000 times."""
SAME = 0.9
FEWEST_PROMPTS = 8


def entropy_collapse(seen: Learning) -> Evidence | None:
    """The policy hardly explores, and its best samples get worse.

    A constant best reward is a solved task, or luck.
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
    return {"start": fmean(start), "now": fmean(now), "reached": fall[0], "best": fall[1]}


def exploding_length(seen: Learning) -> Evidence | None:
    """Replies are several times longer, cut, or without more reward."""
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
    """The held-out score has fallen, the training reward has not."""
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
    """The training reward is well below an earlier level."""
    fall = _fall(seen, "reward") if seen.alone and seen.uniform else None
    return None if fall is None else {"best": fall[0], "now": fall[1], "steps": float(fall[2])}


def kl_runaway(seen: Learning) -> Evidence | None:
    """The distance to the base multiplies without more reward, or passes the task's limit.

    Medians: far from the base single estimates can be wrong by orders of magnitude.
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
    """The trained policy is far from the tokens' writer, or sampler and trainer disagree."""
    course = seen.course
    drift, gap, start = course.last("drift_mean"), course.last("gap_mean"), course.first("gap_mean")
    if gap and start and median(gap) >= max(GAP, GROWN * median(start)):
        return {"gap": median(gap), "gap_start": median(start)}
    if drift and median(drift) >= TYPICAL_DRIFT:
        weights = course.last("weight_ess")
        return {"drift": median(drift)} | ({"ess": median(weights)} if weights else {})
    return None


def large_steps(seen: Learning) -> Evidence | None:
    """Each step changes the policy by more than one batch can justify."""
    moved = seen.course.last("moved")
    return {"moved": median(moved)} if moved and median(moved) >= MOVED else None


def one_reply(seen: Learning) -> Evidence | None:
    """Nearly all episodes have one reply; steps on one prompt are ignored.

    Null hypothesis: it is right for half of the prompts.
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
    """The length limit has cut many replies since the beginning."""
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


def found(seen: Learning) -> dict[str, Evidence]:
    """Current findings not ignored by the task."""
    wanted = (code for code in DETECTORS if code not in seen.watch.ignore)
    return {code: evidence for code in wanted if (evidence := DETECTORS[code](seen)) is not None}


def _long_enough(course: Course, now: Sequence[float]) -> bool:
    return bool(now) and len(course.steps) >= 3 * WINDOW


def _fall(seen: Learning, name: str) -> tuple[float, float, int] | None:
    """Best mean of ``WINDOW`` steps, the newest if well below that, steps since."""
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
    return fmean(best), fmean(now), len(values) - WINDOW - begins[stretches.index(best)]


def _rose(course: Course, before: Sequence[float]) -> bool:
    now = course.last("reward")
    if not now or not before:
        return False
    return fmean(now) > fmean(before) and differ(before, now, course.values("reward"), LENIENT)


def _fell(before: HeldOutScore, now: HeldOutScore, chance: float) -> bool:
    """Both scores use the same prompts: the test is conservative."""
    error = math.hypot(before.stderr, now.stderr)
    freedom = min(before.prompts, now.prompts) - 1
    return before.score - now.score > error * quantile(chance, freedom)


FIRST = 16
"""Episodes enough to judge cut off replies: two default groups."""


class Watch:
    """Watches one policy during one run; notifies once per finding, also across restarts."""

    def __init__(self, services: Services, trained: TrainedPolicy) -> None:
        self._store = services.store
        self._tell = services.tell
        self._task, self._policy, self._name = trained.task, trained.number, trained.name
        self._spec = trained.spec
        self._suite = deciding(trained.spec)
        self._measured = [self._suite] if self._suite else list(components_of(trained.spec))
        sampling = trained.spec.sampling
        self._limits = {
            "max_tokens": as_number(sampling.max_tokens),
            "max_episode_tokens": as_number(sampling.max_episode_tokens),
            "thinks": float(services.traits.thinks and sampling.thinking is not False),
        }
        self._opening: float | None = None
        self.course = Course.of(self._store.findings.seen(self._policy, NAMES, WINDOW, LATELY))

    @property
    def decisive(self) -> bool:
        return REWARD_HACKING in self._spec.watch.pause

    def see(self, step: int, metrics: Mapping[str, float]) -> None:
        self.course.see(step, self._store.findings.environment_at(self._policy, step), metrics)

    async def see_first(self, groups: Sequence[ClosedGroup]) -> None:
        episodes = [one for closed in groups for one in closed.group.episodes]
        if self._opening is None and not self.course.steps and len(episodes) >= FIRST:
            self._opening = sum(any(t.cut for t in one.trajectories) for one in episodes) / len(episodes)
            await self.look()

    async def look(self) -> None:
        findings, scores = self._store.findings, self._store.evaluations.of(self._suite).compared(self._policy)
        signs = found(replace(learning(self.course, scores, self._spec), opening=self._opening, limits=self._limits))
        known = findings.known(self._policy)
        for code, evidence in signs.items():
            if code not in known or not known[code].holds:
                await self._keep(code, evidence)
        lapsed = [code for code, one in known.items() if one.holds and code not in signs]
        if lapsed:
            await self._store.patiently(partial(findings.lapse, self._policy, lapsed))

    def pausing(self) -> Fruitless | None:
        """A person's later resume overrules it."""
        if not self._spec.watch.pause:
            return None
        known = self._store.findings.known(self._policy)
        code = next((code for code in CALLED if code in known and known[code].pending), None)
        return paused(self._task, code, known[code].step) if code else None

    async def _keep(self, code: str, evidence: Evidence) -> None:
        store, step = self._store, self.course.newest
        if code == REWARD_HACKING:
            step = int(evidence["score_step"])
            said = partial(store.findings.said, self._policy, split="eval", suites=self._measured)
            rollouts = chosen(code, said(step=step), said(step=int(evidence["best_step"])))
        else:
            rollouts = chosen(code, store.findings.said(self._policy, step))
        finding = NewFinding(code, step, evidence, rollouts)
        pauses = code in self._spec.watch.pause
        if await store.patiently(partial(store.findings.add, self._policy, finding, pauses)):
            store.telemetry.event("learning", sentence(self._task, self._name, code, step), self._task, "warning")
            self._tell("finding", self._task)


def learning(course: Course, scores: tuple[HeldOutScore, ...], spec: TaskSpec) -> Learning:
    """The detectors' input."""
    others = [policy for policy in spec.policies.values() if policy.trained or policy.pool]
    measure = next((suite for suite in spec.eval.suite if suite.decides), spec.eval)
    evaluations = 2 + (spec.steps // measure.every if measure.every else 0)
    uniform = spec.train.sampling == "uniform"
    return Learning(course, scores, spec.watch, spec.steps, evaluations, alone=len(others) < 2, uniform=uniform)


def sentence(task: int, policy: str, code: str, step: int) -> str:
    """A finding for the log."""
    return (
        f"Learning of {policy} seems to go wrong: {CALLED[code]} at step {step}. `marlaas show {task}` says what shows"
        " it, and what to do."
    )


def paused(task: int, code: str, step: int) -> Fruitless:
    """Why a finding pauses a task."""
    return Fruitless(
        f"Learning seems to go wrong: {CALLED[code]} at step {step}, for which 'watch.pause' pauses the task.",
        f"`marlaas show {task}` says what to do; `marlaas resume {task}` goes on all the same.",
    )
