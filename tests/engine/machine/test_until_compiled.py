"""Who waits for llama.cpp while it is compiled, and who does not."""

from __future__ import annotations

import asyncio

import pytest

from marlaas.engine.devices.software import LlamaBuild
from marlaas.engine.machine import plan as module
from marlaas.engine.machine.plan import LLAMA, TORCH, TRAINER, WorkerSpec, loading, until_compiled

COMPILING = LlamaBuild("compiling", 10.0)


def spec(factory: str) -> WorkerSpec:
    return WorkerSpec("rollout", factory, {}, ())


@pytest.mark.parametrize("end", [None, LlamaBuild("done", 300.0, 1.0), LlamaBuild("failed", 3.0, 1.0, "no compiler")])
async def test_a_sampler_on_llama_waits_for_the_end(end: LlamaBuild | None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "POLL", 0.0)
    answers = [COMPILING, COMPILING, end]
    told: list[str] = []
    await until_compiled([spec(TORCH), spec(LLAMA), spec(TRAINER)], told.append, lambda: answers.pop(0))
    assert answers == []
    assert told == ["The sampler waits for llama.cpp, which is still being compiled."]


async def test_nobody_else_waits() -> None:
    told: list[str] = []
    waiting = until_compiled([spec(TORCH), spec(TRAINER)], told.append, lambda: COMPILING)
    await asyncio.wait_for(waiting, 5.0)
    assert told == []


def test_what_a_start_takes_its_time_for_is_told() -> None:
    assert loading([spec(TORCH), spec(TRAINER)]) == "The workers load the base."
    assert loading([spec(LLAMA), spec(TRAINER)]).endswith("For llama.cpp it is converted first, once.")
