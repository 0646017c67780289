"""Held-out prompts, their scores, and a constant answer's baseline."""

from __future__ import annotations

import asyncio
import json
import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean, stdev

from marlaas.plugins.messages import Ask, Reply

from ..environments.baselines import HeldOut
from ..environments.plugin import unserved
from ..environments.protocol import EpisodeOutcome, EpisodeSpec
from ..environments.served_version import Lease
from ..errors import Blocked, ConfigError, Fruitless, Replaced
from ..machine.services import Services
from ..models.memory import too_short
from ..rollout.conversation import Unplayable
from ..rollout.episodes import PromptHash, Roles
from ..spec.task import EvalSpec
from ..store.versions import Evaluation, best
from ..trajectories import Split
from .failures import never_asks
from .selfplay import Match

# The standard error is that of prompts' means, since samples of one prompt are not independent (Miller 2024, "Adding
# Error Bars to Evals", arXiv 2411.00640: errors clustered by question).

MOST_FAILURES = 0.1
"""With more failed episodes the rest is not representative."""


@dataclass(frozen=True)
class Sampled:
    """One prompt's episodes."""

    rewards: tuple[float, ...]
    failures: int = 0


def score(prompts: Sequence[Sampled], measure: EvalSpec) -> Evaluation:
    """The result over all prompts; without a score if too many episodes failed.

    Prompts that lost a sample count neither for best@k nor for pass@k.
    """
    n, k = sum(len(one.rewards) for one in prompts), measure.samples
    failures = sum(one.failures for one in prompts)
    found = [one.rewards for one in prompts if one.rewards]
    result = Evaluation(
        step=0,
        environment_version="",
        score=None,
        stderr=0.0,
        n=n,
        floor=None,
        metrics={},
        failures=failures,
        prompts=len(found),
        samples=k,
    )
    if not n or failures > MOST_FAILURES * (n + failures):
        return result
    means = [fmean(rewards) for rewards in found]
    result = replace(result, score=fmean(means), stderr=standard_error(means))
    whole = [rewards for rewards in found if len(rewards) == k] if k > 1 else []
    if not whole:
        return result
    passed = [sum(reward >= measure.pass_at_least for reward in rewards) for rewards in whole]
    passes = [pass_at(k, count, k) for count in passed]
    return replace(result, best_of=fmean(map(max, whole)), pass_at=fmean(passes))


def pass_at(n: int, passed: int, k: int) -> float:
    """Unbiased chance that one of ``k`` samples passes.

    1 − C(n − passed, k) / C(n, k): Chen et al. 2021, arXiv 2107.03374, equation 1. Raises ``ValueError`` for ``n`` <
    ``k``.
    """
    if not 0 <= passed <= n or not 1 <= k <= n:
        raise ValueError(f"pass@{k} cannot be told from {passed} of {n} samples")
    return 1.0 - math.comb(n - passed, k) / math.comb(n, k)


def standard_error(means: Sequence[float]) -> float:
    """Of the mean of independent values; 0 for fewer than two."""
    if len(means) < 2:
        return 0.0
    return stdev(means) / math.sqrt(len(means))


def averages(logged: Sequence[Mapping[str, float | str]]) -> dict[str, float]:
    """Means of logged numbers, by name."""
    values: dict[str, list[float]] = {}
    for one in logged:
        for name, value in one.items():
            if isinstance(value, int | float):
                values.setdefault(name, []).append(float(value))
    return {name: fmean(found) for name, found in values.items()}


def reached(scores: Mapping[int, float], spec: EvalSpec) -> bool:
    """True if a trained version (not version 0) has reached the target."""
    target = spec.target
    return target is not None and any(score >= target for number, score in scores.items() if number > 0)


def stalled(scores: Mapping[int, float], spec: EvalSpec) -> bool:
    """True if the last ``patience`` evaluations were no better."""
    if not spec.patience or not scores:
        return False
    return sum(number > best(scores) for number in scores) >= spec.patience


def remark(scores: Mapping[int, float], spec: EvalSpec, early: bool) -> str:
    """The remark on an ended task."""
    if not scores:
        return ""
    clauses = []
    if early and stalled(scores, spec):
        clauses.append(f"the held-out score did not rise in {spec.patience} evaluations")
    if spec.target is not None and not reached(scores, spec):
        clauses.append(f"target {spec.target:g} was not reached")
    if not clauses:
        return ""
    number = best(scores)
    said = f"{' and '.join(clauses)}; best was {scores[number]:.3g} at step {number}."
    return said[0].upper() + said[1:]


FEWEST = 8
"""Without rows, fewer prompts are a game's openings: instances with the same opening may differ."""
LARGEST_LOSS = 0.5
"""Share of repeated training draws. At one half, a space of ten prompts gives five to measure and five to train."""

HARDLY = 0.9


@dataclass(frozen=True)
class Division:
    """Measured and held-out prompts."""

    instances: tuple[int, ...]
    """Of the held-out split, one per prompt."""
    hashes: frozenset[PromptHash]
    """First prompts excluded from training."""
    remark: str = ""
    asks: bool = True
    """False if no training instance that was looked at asked the model."""


def divide(
    evaluated: Sequence[PromptHash | None],
    trained: Sequence[PromptHash],
    rows: bool,
    name: str = "held-out",
    taken: frozenset[PromptHash] = frozenset(),
) -> Division:
    """Divide the prompts between evaluation and training, the same for every task.

    ``evaluated``: first prompt of each held-out instance; an instance with None is measured, and fails. ``trained``:
    those of training instances. ``rows``: two instances with one prompt are one. ``taken``: held out by another split.
    """
    first: dict[PromptHash, int] = {}
    for index, prompt in enumerate(evaluated):
        if prompt is not None:
            first.setdefault(prompt, index)
    silent = tuple(index for index, prompt in enumerate(evaluated) if prompt is None)
    drawn, different = len(evaluated) - len(silent), len({*first, *trained})
    if not rows and different < min(FEWEST, drawn + len(trained)):
        opens = "open with the same prompt" if different == 1 else f"have only {different} different first prompts"
        remark = (
            f"The {name} instances {opens}. Prompts do not tell one from another, so nothing is held out, and training"
            " may meet them too."
        )
        free = tuple(index for index, prompt in enumerate(evaluated) if prompt not in taken)
        return Division(free, frozenset(), remark)
    free_first = {prompt: index for prompt, index in first.items() if prompt not in taken}
    held = _held_out(frozenset(free_first), trained)
    instances = tuple(sorted((*silent, *(free_first[prompt] for prompt in held or free_first))))
    asked = sum(prompt not in taken for prompt in evaluated)
    left = len({*trained} - held)
    return Division(instances, held, _remark(asked, asked - len(silent), len(free_first), len(held), left, name))


def _held_out(prompts: frozenset[PromptHash], trained: Sequence[PromptHash]) -> frozenset[PromptHash]:
    """First those that training never draws, then by hash, leaving training enough."""
    met = {prompt: trained.count(prompt) for prompt in prompts}
    room = LARGEST_LOSS * len(trained)
    held = set()
    for prompt in sorted(prompts, key=lambda prompt: (met[prompt] > 0, prompt)):
        if met[prompt] <= room:
            room -= met[prompt]
            held.add(prompt)
    return frozenset(held)


def _remark(asked: int, drawn: int, distinct: int, held: int, left: int, name: str) -> str:
    if not held and distinct:
        return (
            f"Training draws little but the {distinct} {name} prompts: nothing can be held out, and it meets them too."
        )
    if held < distinct:
        return (
            f"Training draws from the same prompts as the {name} split: {held} of its {distinct} are measured, and kept"
            f" out of training, which has {left} others of those that were looked at."
        )
    if distinct < HARDLY * drawn:
        return f"Only {distinct} of {asked} {name} prompts differ: each is measured once."
    return ""


EVAL_SEED = 0
"""All runs and tenants are measured on the same instances."""
DRAWS = 32
TRIES = 3
ENOUGH = 8
"""A slow failure would delay the error."""
NAMES: Mapping[Split, str] = {"eval": "held-out", "test": "test"}
AT_ONCE = 64


def held_out_spec(lease: Lease, index: int, member: int = 0, split: Split = "eval") -> EpisodeSpec:
    """One episode of an evaluation."""
    return EpisodeSpec(split, index, EVAL_SEED, member, lease.config)


class HeldOutPrompts:
    """One task's measured prompts, per environment code and evaluation rows."""

    def __init__(
        self,
        services: Services,
        task: int,
        prompts: int,
        split: Split = "eval",
        beside: HeldOutPrompts | None = None,
        component: str = "",
    ) -> None:
        """``prompts``: number of instances; those of ``beside`` are excluded."""
        self._component = component
        self.split: Split = split
        self._beside = beside
        self._services = services
        self._task = task
        self._prompts = prompts
        self._known: dict[tuple[str, str], Division] = {}
        self._told: set[str] = set()
        self._rejected = ""
        """The last refusal that a program heard while it was looked at."""
        self._looking = asyncio.Lock()
        self.newest: frozenset[PromptHash] = frozenset()

    async def of(self, lease: Lease) -> frozenset[PromptHash]:
        """Raises as ``division`` does, and ``Fruitless`` if training never asks the model."""
        try:
            others = await self._beside.of(lease) if self._beside else frozenset()
            division = await self.division(lease)
            if not division.asks:
                where = f"{DRAWS} training instances that were looked at"
                raise never_asks(lease.environment, where, self._rejected)
            self.newest = division.hashes | others
            return self.newest
        except Replaced:
            return frozenset()  # results of a lost lease are discarded

    async def division(self, lease: Lease) -> Division:
        """Raises ``Blocked`` if not all prompts were seen, ``Replaced`` if the lease ended."""
        follows = lease.code, lease.digest
        async with self._looking:
            if follows not in self._known:
                self._known[follows] = await self._look(lease)
        return self._known[follows]

    def tell(self, sentence: str) -> None:
        if sentence and sentence not in self._told:
            self._told.add(sentence)
            self._services.store.telemetry.event("evaluation", sentence, self._task, "warning")

    async def _look(self, lease: Lease) -> Division:
        context, wanted = self._context, self._services.rollout.rendering.renderer.wanted
        if wanted is not None and (says := too_short(lease.declared.context, context, wanted)):
            raise Fruitless(f"{lease.environment} has too little room: {says}.", "Then resume the task.")
        specs = [held_out_spec(lease, index, split=self.split) for index in range(self._prompts)]
        draws = [held_out_spec(lease, index, split="train") for index in range(DRAWS)]
        taken = (await self._beside.division(lease)).hashes if self._beside else frozenset()
        seen, silent = await self._seen(lease, [*specs, *draws])
        trained = [prompt for prompt in seen[self._prompts :] if prompt is not None and prompt not in taken]
        division = divide(seen[: self._prompts], trained, bool(lease.declared.rows), NAMES[self.split], taken)
        if self.split == "test":
            self._check_test(lease, division, seen)
        about = f"{self._component}: " if self._component and division.remark else ""
        self.tell(about + division.remark)
        return replace(division, asks=not silent.issuperset(range(self._prompts, len(seen))))

    def _check_test(self, lease: Lease, division: Division, seen: Sequence[PromptHash | None]) -> None:
        if any(seen[index] is not None for index in division.instances):
            return
        if any(prompt is not None for prompt in seen[: self._prompts]):
            why = "each has a prompt that is in the split 'eval', too"
        else:
            why = "none shows a prompt: its data may not know this split"
        raise ConfigError(
            f"{lease.environment} has no instances for the split 'test': {why}.",
            "Give it some, or leave 'eval.test_prompts' out.",
        )

    async def _seen(self, lease: Lease, specs: Sequence[EpisodeSpec]) -> tuple[list[PromptHash | None], frozenset[int]]:
        """First prompts, and indices that end well without asking, or whose prompt is refused.

        Failures are repeated: another instance may have killed the process, or the machine was overloaded.
        """
        found: dict[int, PromptHash | None] = {}
        silent: set[int] = set()
        failed = 0
        permits = asyncio.Semaphore(AT_ONCE)

        async def look(place: int) -> EpisodeOutcome | None:
            nonlocal failed
            async with permits:
                if failed >= ENOUGH and not found:
                    return None
                with self._services.rollout.canned(_silence) as answering:
                    ended = await self._services.environments.look(lease, specs[place], answering.endpoint)
                    self._rejected = answering.rejected() or self._rejected
            if isinstance(ended, Ask):
                found[place] = await self._hash(ended)
                if found[place] is None:
                    silent.add(place)
            elif ended.status in ("ok", "skip"):
                found[place] = None
                if ended.status == "ok":
                    silent.add(place)
            else:
                failed += not (ended.died or ended.overloaded or _own_fault(ended))
                return ended
            return None

        for _ in range(TRIES):
            failed = 0
            missing = [place for place in range(len(specs)) if place not in found]
            ended = await asyncio.gather(*map(look, missing))
            if lease.cut:
                raise Replaced
        lost = [outcome for outcome in ended if outcome is not None and not _own_fault(outcome)]
        if lost:
            raise self._incomplete(lease, lost, len(specs))
        return [found.get(place) for place in range(len(specs))], frozenset(silent)

    @property
    def _context(self) -> int:
        return max(endpoint.context for endpoint in self._services.endpoints.values())

    async def _hash(self, ask: Ask) -> PromptHash | None:
        try:
            return await self._services.rollout.prompt_hash(ask, self._context)
        except Unplayable as error:
            self._rejected = error.message
            return None

    def _incomplete(self, lease: Lease, lost: Sequence[EpisodeOutcome], asked: int) -> Blocked:
        plugin = lease.environment.partition("/")[0]
        if lease.rest is not None:
            return Blocked(str(unserved(plugin, lease.rest)))
        failure = next((outcome.failure for outcome in lost if outcome.failure), None)
        why = f": {failure.message.rstrip('.')}" if failure else ""
        return Blocked(
            f"The first prompts of {len(lost)} of {asked} instances of {lease.environment} could not be seen in"
            f" {TRIES} tries{why}. Training might meet what is held out."
        )


async def _silence(_ask: Ask) -> Reply:
    return await asyncio.Future()


def _own_fault(outcome: EpisodeOutcome) -> bool:
    """True if the environment's code failed: it will again."""
    failure = outcome.failure
    return outcome.status == "error" and not outcome.overloaded and failure is not None and failure.line > 0


# Collapsed policies give constant answers. Tasks on the same prompts share the result.

USUAL = ("", "0", "1", "yes", "no")
MOST = 12


@dataclass(frozen=True)
class HeldOutEpisode:
    """One sample of a held-out prompt."""

    spec: EpisodeSpec
    match: Match
    roles: Roles


class Constant:
    """An ``Answer`` of the same text to all requests."""

    def __init__(self, text: str) -> None:
        self.asked: set[str] = set()
        self._text = text
        self._replies: Counter[tuple[str, int]] = Counter()

    async def __call__(self, ask: Ask) -> Reply:
        self.asked.add(ask.agent)
        place = ask.agent, ask.branch
        if ask.fork is not None:
            self._replies[place] = ask.fork.turns
        self._replies[place] += 1
        return Reply(self._text, "stop", self._replies[place] - 1)

    def score(self, outcome: EpisodeOutcome) -> float | None:
        rewards = [reward for agent, reward in outcome.rewards.items() if agent in self.asked]
        return fmean(rewards) if rewards else None


async def constant_baseline(
    services: Services, policy: str, lease: Lease, episodes: Sequence[HeldOutEpisode], replies: Iterable[str]
) -> float | None:
    """The best mean score of one constant text.

    None if no text has a score, or other policies speak. Raises ``Replaced`` if the lease ended.
    """
    if any(set(episode.match.agents.values()) - {policy} for episode in episodes):
        return None

    async def score(episode: HeldOutEpisode, text: str) -> float | None:
        constant = Constant(text)
        with services.rollout.canned(constant) as answering:
            return constant.score(await services.environments.play(lease, episode.spec, answering))

    async def measure(text: str, begin: int, end: int) -> list[float | None]:
        scores = await asyncio.gather(*(score(episode, text) for episode in episodes[begin:end]))
        if lease.cut:
            raise Replaced
        return scores

    data = dict(lease.data) if lease.data is not None else None
    config = json.dumps([episodes[0].spec.split, lease.config, data, lease.digest], sort_keys=True)
    prompts = HeldOut(lease.environment, lease.environment_version, config, len(episodes))
    texts = [*(text for text, _ in Counter(replies).most_common(MOST)), *USUAL]
    return await services.baselines.of(prompts, texts, measure, _mean_of_most)


def _mean_of_most(scores: Sequence[float | None]) -> float | None:
    found = [score for score in scores if score is not None]
    few = len(scores) - len(found) > MOST_FAILURES * len(scores)
    return fmean(found) if found and not few else None
