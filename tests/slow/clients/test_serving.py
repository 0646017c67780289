"""Clients that no one here wrote talk with an adapter and with the base, and evaluate both."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass

import pytest

from marlaas.engine.home.paths import TINY_BASE
from tests.end_to_end.conftest import Lab

from .conftest import Open, opened, ran, shipped_lab

__all__ = ["shipped_lab"]
pytestmark = [pytest.mark.clients, pytest.mark.processes, pytest.mark.timeout(900)]


@dataclass(frozen=True)
class Served:
    """A home that serves a task's adapter, and its base."""

    api: Open
    models: dict[str, str]


@pytest.fixture(scope="module")
def served(shipped_lab: Lab) -> Iterator[Served]:
    task = shipped_lab.submit("sums", steps=6)
    shipped_lab.marlaas("wait", str(task))
    yield Served(opened(shipped_lab), {"adapter": f"{task}@6", "base": "tiny"})


@pytest.mark.parametrize("which", ["adapter", "base"])
@pytest.mark.parametrize("library", ["openai", "anthropic"])
def test_the_sdks_talk_with_it(served: Served, library: str, which: str) -> None:
    assert ran(library, f"serve_{library}.py", served.api, served.models[which]).strip()


def test_both_interfaces_say_the_same(served: Served) -> None:
    said = {ran(name, f"serve_{name}.py", served.api, served.models["adapter"]) for name in ("openai", "anthropic")}
    assert len(said) == 1


@pytest.mark.parametrize("which", ["adapter", "base"])
def test_inspect_ai_evaluates_it(served: Served, which: str) -> None:
    accuracy = float(ran("inspect-ai", "serve_inspect.py", served.api, served.models[which]).splitlines()[-1])
    assert 0 <= accuracy <= 1


@pytest.mark.parametrize("which", ["adapter", "base"])
def test_lm_eval_evaluates_it(served: Served, which: str) -> None:
    said = ran("lm-eval", "serve_lm_eval.py", served.api, served.models[which], str(TINY_BASE))
    found = json.loads(said.splitlines()[-1])
    assert float(found["marlaas_sums"]["acc,none"]) > 0.5, "the base knows that letters are no sum"
    assert "marlaas_words" in found


@pytest.mark.parametrize("which", ["adapter", "base"])
def test_verifiers_evaluates_it(served: Served, which: str) -> None:
    assert 0 <= float(ran("verifiers", "serve_verifiers.py", served.api, served.models[which]).splitlines()[-1]) <= 1
