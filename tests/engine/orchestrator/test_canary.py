"""A version that the sampler serves wrongly is found out; a step too small to tell is recorded as such."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest

from marlaas.engine.errors import AdapterError
from marlaas.engine.orchestrator.canary import CanaryReport, canary
from marlaas.engine.orchestrator.tolerance import Tolerance
from marlaas.engine.training.advantages import ClosedGroup, close_group
from marlaas.engine.types import Episode, Group, Span, Trajectory

from .test_learning import SPEC
from .world import World


def group(own: int) -> ClosedGroup:
    mask = np.array([0] + [1] * own + [0], np.uint8)
    spans = (Span(1, 1 + own, 0),)
    trajectory = Trajectory("a", np.arange(1, own + 3, dtype=np.int32), mask, np.zeros(own + 2, np.float32), spans)
    episodes = tuple(Episode(n, "ok", (replace(trajectory, reward=float(n)),)) for n in range(2))
    closed = close_group(Group(0, 0, 0, "e", episodes))
    assert isinstance(closed, ClosedGroup)
    return closed


class Says:
    """Both sides of the comparison: constant log-probabilities, and noise where others wrote."""

    def __init__(self, **values: float) -> None:
        self.values = values

    async def score(self, name: str, tokens: Any, start: int, temperature: float) -> Any:
        said = np.full(len(tokens) - start, self.values[name], np.float32)
        said[-1] = np.nan
        return said


async def compare(tmp_path: Path, trained: float, new: float, old: float, own: int = 3) -> CanaryReport:
    services = replace(
        await World(tmp_path, SPEC).services(),
        trainer=cast(Any, Says(policy=trained)),
        sampler=cast(Any, Says(new=new, old=old)),
        tolerance=Tolerance(largest=0.01),
    )

    async def publish() -> None:
        pass

    return await canary(services, "policy", "new", "old", [group(1), group(own)], 1.0, publish)


async def test_agreement_is_measured_on_the_policys_own_tokens(tmp_path: Path) -> None:
    report = await compare(tmp_path, trained=-1.0, new=-1.001, old=-1.5)
    assert report.gap == pytest.approx(0.001, abs=1e-6) and report.resolved


async def test_a_small_step_is_not_resolved(tmp_path: Path) -> None:
    assert not (await compare(tmp_path, trained=-1.0, new=-1.001, old=-1.002)).resolved


@pytest.mark.parametrize("new", [-1.5, float("nan")])
async def test_a_wrong_adapter_is_refused(tmp_path: Path, new: float) -> None:
    with pytest.raises(AdapterError, match="away from the trainer's"):
        await compare(tmp_path, trained=-1.0, new=new, old=-1.5)
