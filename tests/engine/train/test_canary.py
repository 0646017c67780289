"""A version that the sampler serves wrongly is found, on made-up sides and on the shipped base."""

from __future__ import annotations

import math
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
from hypothesis import given, strategies as st

from marlaas.engine.adapters.statefile import read_state, write_state
from marlaas.engine.errors import AdapterError
from marlaas.engine.machine.routing.router import EXACT, ROUNDED, Tolerance
from marlaas.engine.models.find import BaseModel, load_base
from marlaas.engine.rollout.renderer import Renderer
from marlaas.engine.samplers.llama.model import LlamaSampler
from marlaas.engine.samplers.protocol import Sampler
from marlaas.engine.samplers.torch.context import TorchWeights
from marlaas.engine.samplers.torch.sampler import TorchSampler
from marlaas.engine.train.canary import MANY, Canary, CanaryReport, compare
from marlaas.engine.trainer.advantages import ClosedGroup, close_group, train_group
from marlaas.engine.trainer.protocol import PolicyConfig
from marlaas.engine.trainer.torch_trainer import TorchTrainer
from marlaas.engine.trajectories import Episode, Group, Span, Trajectory
from marlaas.plugins.messages import Message

from ...seldom import often, seldom
from ..rollout.endpoints import endpoint


def group(own: int, *rewards: float) -> ClosedGroup:
    """Two episodes of so many own tokens, the last of them after a token that another wrote: those are 0."""
    mask = np.array([0] + [1] * (own - 1) + [0] + [1] * min(1, own) + [0], np.uint8)
    spans = (Span(1, len(mask) - 1, 0),)
    tokens, logprobs = np.arange(1, len(mask) + 1, dtype=np.int32) * mask, np.zeros(len(mask), np.float32)
    trajectory = Trajectory("a", tokens.astype(np.int32), mask, logprobs, spans)
    episodes = tuple(Episode(n, "ok", (replace(trajectory, reward=one),)) for n, one in enumerate(rewards or (0, 1)))
    closed = close_group(Group(0, 0, 0, "e", episodes))
    assert isinstance(closed, ClosedGroup)
    return closed


def said(value: float, tokens: Any, start: int) -> Any:
    """One side's answer: a constant log-probability, and noise where others wrote."""
    found = np.full(len(tokens) - start, value, np.float32)
    found[tokens[start:] == 0] = np.nan
    return found


class Says:
    """A sampler of a constant log-probability."""

    def __init__(self, value: float) -> None:
        self.value = value
        self.before = value
        self.asked: list[str] = []

    async def score(self, name: str, tokens: Any, start: int, temperature: float) -> Any:
        self.asked.append(name)
        return said(self.before if name == "old" else self.value, tokens, start)


STRICT = Tolerance(largest=0.01, rounding=1e-4)


class Pair:
    """A canary between a sampler and a trainer that begin at -1, and perhaps a second sampler."""

    def __init__(self, tolerance: Tolerance = STRICT, gap: float = 0.001, second: Tolerance = STRICT) -> None:
        self.sampler, self.second, self.trained = Says(-1.0 + gap), Says(-1.0 + gap), -1.0
        self.first, self.other = endpoint(self.sampler, 1, 9), endpoint(self.second, 1, 9, "rollout-2")
        self.canary = Canary({"rollout": tolerance, "rollout-2": second}, 1.0)

    async def step(
        self, trained: float, served: float, groups: list[ClosedGroup] | None = None, second: float | None = None
    ) -> CanaryReport:
        """``second``: what the other sampler says afterwards, if it is to serve the version, too."""
        endpoints = [self.first] if second is None else [self.first, self.other]
        asked = self.canary.ask([group(3)] if groups is None else groups, {one.name for one in endpoints})
        wanted = asked.probe.sequences if asked.probe else ()
        values = (self.trained, trained) if asked.renewed else (trained,)
        self.canary.learn(asked, [said(value, *one) for value in values for one in wanted])
        self.trained, self.sampler.value = trained, served
        self.second.value = self.second.value if second is None else second
        scores = await self.canary.ask_samplers("new", "old", endpoints, asked)
        report = self.canary.judge("new", asked, scores)
        self.sampler.before, self.second.before = self.sampler.value, self.second.value
        return report


async def test_a_second_home_serving_the_old_version_is_found() -> None:
    pair = Pair()
    await pair.step(trained=-1.3, served=-1.299, second=-1.299)
    with pytest.raises(AdapterError, match=r"rollout-2 says that it serves new, but .* 0% arrived"):
        await pair.step(trained=-1.3085, served=-1.3075, second=-1.299)


async def test_each_home_has_the_tolerance_of_its_own_arithmetic() -> None:
    rough = Tolerance(mean=0.2)
    assert (await Pair(second=rough).step(trained=-1.9, served=-1.9, second=-1.8)).gap == pytest.approx(0.1)
    with pytest.raises(AdapterError, match="The sampler rollout serves"):
        await Pair(second=rough).step(trained=-1.9, served=-1.8, second=-1.9)


async def test_a_step_that_rounding_may_hide_is_not_resolved() -> None:
    assert not (await Pair().step(trained=-1.003, served=-0.999)).resolved
    assert not (await Pair().step(trained=-1.0, served=-0.999)).resolved


async def test_a_look_at_few_tokens_does_not_bound_rounding() -> None:
    """As after a restart: they agree by chance, then a tiny step is rounded differently."""
    report = await Pair(EXACT, gap=0.0).step(trained=-1.0 - 2e-6, served=-1.0 - 5e-6)
    assert not report.resolved


async def test_a_policy_that_blew_up_is_named_as_such() -> None:
    with pytest.raises(AdapterError, match="not finite: the policy has blown up"):
        await Pair().step(float("nan"), float("nan"))


async def test_a_home_that_was_left_is_new_when_it_comes_back() -> None:
    pair = Pair()
    await pair.step(trained=-1.3, served=-1.3, second=-1.3)
    await pair.step(trained=-1.6, served=-1.6)
    await pair.step(trained=-1.9, served=-1.9, second=-1.9)
    assert pair.second.asked == ["old", "new", "old", "new"] and pair.sampler.asked.count("old") == 2


async def test_a_batch_without_own_tokens_says_nothing() -> None:
    report = await Pair().step(trained=-1.3, served=-5.0, groups=[group(0)])
    assert not report.resolved and report.metrics()["gap_max"] == 0.0


@pytest.mark.parametrize("size", [seldom(0.005), 0.02, seldom(0.07), 0.3])
@pytest.mark.parametrize("cancels", [0.0, seldom(0.6)])
def test_verdicts_are_wrong_as_seldom_as_is_said(size: float, cancels: float) -> None:
    """Changes and rounding with long tails, which are not what ``compare`` assumes; as in q8_0 of a real base."""
    random, wrong, resolved = np.random.default_rng(0), 0, 0
    for _ in range(2000):
        moved = size * random.standard_t(3, MANY) / math.sqrt(3)
        old, fresh = 0.11 * random.standard_t(5, (2, MANY)) * math.sqrt(3 / 5)
        new = cancels * old + math.sqrt(1 - cancels**2) * fresh
        for served, truth in ((moved + new - old, 1.0), (0.0 * moved, 0.0)):
            share, doubt = compare(moved, served, old, Tolerance())
            resolved += doubt < 0.5
            wrong += doubt < 0.5 and abs(share - truth) >= 0.5
    assert not wrong and resolved >= {0.3: 3990}.get(size, 0) and resolved <= {0.005: 0, 0.02: 0}.get(size, 4000)


@given(moved=st.lists(st.floats(-2, 2), min_size=1, max_size=8), stands=st.booleans())
def test_without_rounding_the_share_is_what_was_served(moved: list[float], stands: bool) -> None:
    trained = np.array(moved)
    share, doubt = compare(trained, trained * (not stands), np.zeros(len(moved)), EXACT)
    assert doubt >= 0.5 or share == pytest.approx(0.0 if stands else 1.0)


CONFIG = PolicyConfig(denominator=64.0)
MEMBERS, REPLY = 4, 6
TORCH, HALVED, FLOAT, EIGHT_BITS = "torch", "bf16", "f32", "q8_0"
"""Samplers: torch in float32 and bfloat16, and llama.cpp by what it keeps the base in."""

ROUGH = {HALVED, EIGHT_BITS}


class Late:
    """A sampler that answers a load with the right checksum, and from some version on serves the last one before it."""

    def __init__(self, sampler: Sampler, since: int) -> None:
        self._sampler = sampler
        self._since = since
        self._paths: list[str] = []

    async def load(self, version: str, path: str) -> str:
        self._paths.append(path)
        checksum = await self._sampler.load(f"{version} itself", path)
        await self._sampler.load(version, self._paths[min(len(self._paths), self._since) - 1])
        return checksum

    async def score(self, *arguments: Any) -> Any:
        return await self._sampler.score(*arguments)


class Run:
    """A policy that learns to reply with tokens of one parity, and its canary."""

    def __init__(self, base: BaseModel, trainer: TorchTrainer, sampler: Any, folder: Path, weights: str) -> None:
        self.trainer, self.sampler, self.folder = trainer, sampler, folder
        tolerance = ROUNDED[weights] if weights in ROUGH else EXACT
        self.canary = Canary({"rollout": tolerance}, 1.0)
        self.endpoints = [endpoint(sampler, 4, 128)]
        self.renderer = Renderer(base.path)
        self.random = np.random.default_rng(0)
        self.step = 0

    async def open(self, rate: float) -> None:
        await self.trainer.open("policy", replace(CONFIG, learning_rate=rate), str(self.folder / "0"), resume=False)
        await self.sampler.load("v0", str(self.folder / "0"))

    async def go(self) -> CanaryReport:
        """One optimizer step, published and compared."""
        closed = self.group()
        asked = self.canary.ask([closed], {endpoint.name for endpoint in self.endpoints})
        self.step += 1
        path = str(self.folder / str(self.step))
        stats = await self.trainer.accumulate("policy", (train_group(closed.group),), asked.probe, path)
        assert stats.step is not None
        self.canary.learn(asked, stats.step.scores)
        await self.sampler.load(f"v{self.step}", path)
        served = await self.canary.ask_samplers(f"v{self.step}", f"v{self.step - 1}", self.endpoints, asked)
        return self.canary.judge(f"v{self.step}", asked, served)

    def group(self) -> ClosedGroup:
        """Random replies to a random sum: what is compared are log-probabilities, whoever spoke."""
        first, second = self.random.integers(10, 99, 2)
        prompt = self.renderer.open([Message("user", f"{first} + {second} = ?")])
        episodes = tuple(self._episode(member, prompt) for member in range(MEMBERS))
        closed = close_group(Group(self.step, self.step, self.step, "e", episodes))
        assert isinstance(closed, ClosedGroup)
        return closed

    def _episode(self, member: int, prompt: list[int]) -> Episode:
        reply = self.random.integers(0, 60, REPLY)
        tokens = np.array([*prompt, *reply], np.int32)
        mask = np.array([0] * len(prompt) + [1] * REPLY, np.uint8)
        logprobs = np.where(mask, -4.0, 0.0).astype(np.float32)
        spans = (Span(len(prompt), len(tokens), self.step),)
        return Episode(member, "ok", (Trajectory("a", tokens, mask, logprobs, spans, float(member % 2)),))


@pytest.fixture(scope="module")
def base() -> BaseModel:
    return load_base("tiny")


@pytest.fixture(scope="module")
def trainer(base: BaseModel) -> Iterator[TorchTrainer]:
    trainer = TorchTrainer(str(base.path), base.fingerprint, sync=False)
    yield trainer
    trainer.shutdown()


@pytest.fixture(params=[TORCH, seldom(HALVED), seldom(FLOAT), EIGHT_BITS])
def weights(request: pytest.FixtureRequest) -> str:
    return cast(str, request.param)


@pytest.fixture
async def sampler(base: BaseModel, weights: str, tmp_path: Path) -> AsyncIterator[Sampler]:
    if weights in (TORCH, HALVED):
        stored: TorchWeights = "bf16" if weights == HALVED else "f32"
        sampler: TorchSampler | LlamaSampler = TorchSampler(str(base.path), sequences=4, context=128, weights=stored)
    else:
        cache, exact = str(tmp_path / "cache"), weights == FLOAT
        sampler = LlamaSampler(str(base.path), cache, sequences=4, context=128, exact=exact, weights=weights)
    yield sampler
    await sampler.close()


@pytest.mark.parametrize("steps", [6, pytest.param(200, marks=[pytest.mark.slow, pytest.mark.timeout(600)])])
async def test_honest_steps_raise_no_alarm(
    base: BaseModel, trainer: TorchTrainer, sampler: Sampler, weights: str, tmp_path: Path, steps: int
) -> None:
    run = Run(base, trainer, sampler, tmp_path, weights)
    await run.open(1e-4)
    reports = []
    for _ in range(steps):
        reports.append(await run.go())
        await sampler.retire(f"v{run.step - 1}")
    told = sum(report.resolved for report in reports)
    assert told >= 1 if weights in ROUGH else told == steps


@pytest.mark.parametrize(
    ("weights", "rate", "words"),
    [
        (TORCH, 1e-4, "away from the trainer's"),
        seldom(TORCH, 1e-6, "0% arrived"),
        seldom(FLOAT, 1e-4, "away from the trainer's"),
        (FLOAT, 1e-6, "0% arrived"),
    ],
    indirect=["weights"],
)
@pytest.mark.parametrize("since", [seldom(0), 2, seldom(9)])
async def test_the_version_before_is_found_at_a_small_learning_rate(
    base: BaseModel,
    trainer: TorchTrainer,
    sampler: Sampler,
    weights: str,
    tmp_path: Path,
    rate: float,
    words: str,
    since: int,
) -> None:
    run = Run(base, trainer, Late(sampler, since + 1), tmp_path, weights)
    await run.open(rate)
    for _ in range(since):
        assert (await run.go()).resolved
    with pytest.raises(AdapterError, match=words):
        await run.go()


@pytest.mark.parametrize(("weights", "rate"), [seldom(HALVED, 6e-5), (EIGHT_BITS, 1e-4)], indirect=["weights"])
@pytest.mark.parametrize("since", [seldom(0), 3])
async def test_a_rough_sampler_that_stands_is_found_in_a_few_steps(
    base: BaseModel, trainer: TorchTrainer, sampler: Sampler, weights: str, tmp_path: Path, rate: float, since: int
) -> None:
    """The gap stays what rounding explains; what training changed adds up."""
    run = Run(base, trainer, Late(sampler, since + 1), tmp_path, weights)
    await run.open(rate)
    with pytest.raises(AdapterError, match=r"of what training changed, -?\d+% arrived"):
        for _ in range(since + 12):
            await run.go()
    assert run.step > since


def of_another(adapter: dict[str, Any]) -> dict[str, Any]:
    """As large as this one, and trained for something else."""
    random = np.random.default_rng(0)
    return {name: random.permutation(value.ravel()).reshape(value.shape) for name, value in adapter.items()}


def one_spoilt(adapter: dict[str, Any]) -> dict[str, Any]:
    """The values of a single matrix are in another order."""
    name = next(name for name in adapter if name.endswith("B"))
    return adapter | {name: of_another({name: adapter[name]})[name]}


FAULTS: dict[str, Callable[[dict[str, Any]], dict[str, Any]]] = {
    "one layer is missing": lambda adapter: {n: 0 * v if ".layers.1." in n else v for n, v in adapter.items()},
    "another tenant's": of_another,
    "one matrix is spoilt": one_spoilt,
    "half of its strength": lambda adapter: {n: v / 2 if n.endswith("B") else v for n, v in adapter.items()},
}


class Wrong(Late):
    """Answers a load with the right checksum, and from the ``since``-th on serves something else than was trained."""

    def __init__(self, sampler: Sampler, since: int, fault: str) -> None:
        super().__init__(sampler, since)
        self._fault = FAULTS[fault]

    async def load(self, version: str, path: str) -> str:
        self._paths.append(path)
        if len(self._paths) <= self._since:
            return await self._sampler.load(version, path)
        checksum, state = await self._sampler.load(f"{version} itself", path), read_state(Path(path))
        write_state(Path(f"{path} wrong"), replace(state, adapter=self._fault(state.adapter)), sync=False)
        await self._sampler.load(version, f"{path} wrong")
        return checksum


@pytest.mark.parametrize("weights", [TORCH], indirect=True)
@pytest.mark.parametrize("since", [1, seldom(3)])
@pytest.mark.parametrize("fault", often(("another tenant's", "one matrix is spoilt", "one layer is missing"), FAULTS))
async def test_what_was_not_trained_is_found_at_once(
    base: BaseModel, trainer: TorchTrainer, sampler: Sampler, weights: str, tmp_path: Path, fault: str, since: int
) -> None:
    """On new tokens, and on those that have been compared before."""
    run = Run(base, trainer, Wrong(sampler, since, fault), tmp_path, weights)
    await run.open(1e-3)
    for _ in range(since - 1):
        assert (await run.go()).resolved
    with pytest.raises(AdapterError, match=r"away from the trainer's|arrived"):
        await run.go()
