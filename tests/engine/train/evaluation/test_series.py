"""The key of a series: what decides a score changes it, and nothing else."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from marlaas.engine.spec.task import EvalSpec
from marlaas.engine.train.environment import series_of


def lease(**changed: object) -> Any:
    given = {"environment": "a/a", "environment_version": "v1", "code": "c", "config": {"digits": 1}, "digest": "d"}
    return SimpleNamespace(**(given | changed))


@pytest.mark.parametrize("change", [{"code": "e"}, {"config": {"digits": 2}}, {"digest": "e"}, {"environment": "b/a"}])
def test_what_is_played_decides(change: dict[str, object]) -> None:
    assert series_of(lease(**change), EvalSpec()) != series_of(lease(), EvalSpec())


@pytest.mark.parametrize(
    "key", ["prompts", "samples", "temperature", "top_p", "top_k", "min_p", "pass_at_least", "agents", "rotate"]
)
def test_how_it_is_measured_decides(key: str) -> None:
    values: dict[str, Any] = {"agents": {"a": "base"}, "rotate": True, "top_k": 3, "prompts": 3, "samples": 3}
    assert series_of(lease(), EvalSpec(**{key: values.get(key, 0.5)})) != series_of(lease(), EvalSpec())


def test_neither_the_version_nor_when_it_is_measured_does() -> None:
    later = EvalSpec(every=3, target=0.5, patience=2)
    assert series_of(lease(environment_version="v2"), later) == series_of(lease(), EvalSpec())
