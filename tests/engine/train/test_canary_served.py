"""The canary on the shipped base, with the real trainer and the real samplers."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest

from marlaas.engine.adapters.statefile import read_state, write_state
from marlaas.engine.errors import AdapterError
from marlaas.engine.machine.routing.router import EXACT, ROUNDED
from marlaas.engine.models.find import BaseModel, load_base
from marlaas.engine.rollout.renderer import Renderer
from marlaas.engine.samplers.llama.model import LlamaSampler
from marlaas.engine.samplers.protocol import Sampler
from marlaas.engine.samplers.torch.context import TorchWeights
from marlaas.engine.samplers.torch.sampler import TorchSampler
from marlaas.engine.train.canary import Canary, CanaryReport
from marlaas.engine.trainer.advantages import ClosedGroup, close_group, train_group
from marlaas.engine.trainer.protocol import PolicyConfig
from marlaas.engine.trainer.torch_trainer import TorchTrainer
from marlaas.engine.trajectories import Episode, Group, Span, Trajectory
from marlaas.plugins.messages import Message

from ...seldom import seldom
from ..rollout.endpoints import endpoint

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
        await self.train((closed,))
        asked = self.canary.ask({endpoint.name for endpoint in self.endpoints})
        self.step += 1
        path = str(self.folder / str(self.step))
        await self.trainer.step("policy", path)
        await self.sampler.load(f"v{self.step}", path)
        served = await self.canary.ask_samplers(f"v{self.step}", f"v{self.step - 1}", self.endpoints, asked)
        await self.train(())
        return await self.canary.judge(f"v{self.step}", asked, served)

    async def train(self, groups: tuple[ClosedGroup, ...]) -> None:
        """Pass groups, with what the canary asks of the trainer."""
        probe = self.canary.probe(groups)
        stats = await self.trainer.accumulate("policy", tuple(train_group(one.group) for one in groups), probe)
        self.canary.learn(stats.scores)

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


@pytest.fixture(params=[TORCH, HALVED, FLOAT, EIGHT_BITS])
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


@pytest.mark.parametrize("steps", [10, pytest.param(200, marks=[pytest.mark.slow, pytest.mark.timeout(600)])])
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


@pytest.mark.parametrize("weights", [TORCH, FLOAT], indirect=True)
@pytest.mark.parametrize(("rate", "words"), [(1e-4, "away from the trainer's"), (1e-6, "0% arrived")])
@pytest.mark.parametrize("since", [seldom(0), 9])
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


@pytest.mark.parametrize(("weights", "rate"), [(HALVED, 6e-5), (EIGHT_BITS, 1e-4)], indirect=["weights"])
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


def scrambled(adapter: dict[str, Any]) -> dict[str, Any]:
    """Each layer has the matrices of the one before."""
    layers = 1 + max(int(name.split(".layers.")[1].split(".")[0]) for name in adapter)

    def before(name: str) -> str:
        head, tail = name.split(".layers.")
        number, rest = tail.split(".", 1)
        return f"{head}.layers.{(int(number) - 1) % layers}.{rest}"

    return {name: adapter[before(name)] for name in adapter}


def of_another(adapter: dict[str, Any]) -> dict[str, Any]:
    """As large as this one, and trained for something else."""
    random = np.random.default_rng(0)
    return {name: random.permutation(value.ravel()).reshape(value.shape) for name, value in adapter.items()}


def one_spoilt(adapter: dict[str, Any]) -> dict[str, Any]:
    """The values of a single matrix are in another order."""
    name = next(name for name in adapter if name.endswith("B"))
    return adapter | {name: of_another({name: adapter[name]})[name]}


FAULTS: dict[str, Callable[[dict[str, Any]], dict[str, Any]]] = {
    "blank": lambda adapter: {name: 0 * value for name, value in adapter.items()},
    "scrambled layers": scrambled,
    "one layer is missing": lambda adapter: {n: 0 * v if ".layers.1." in n else v for n, v in adapter.items()},
    "another tenant's": of_another,
    "one matrix is spoilt": one_spoilt,
    "rows in another order": lambda adapter: {n: v[::-1].copy() if n.endswith("B") else v for n, v in adapter.items()},
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
@pytest.mark.parametrize("fault", list(FAULTS))
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
