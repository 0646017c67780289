"""The line above the keys tells of llama.cpp that is still being compiled, before what the workers do."""

from __future__ import annotations

import pytest

from marlaas.app.frame import feed
from marlaas.engine.devices.software import LlamaBuild
from marlaas.engine.home.paths import Home

from ..driving import driving
from ..filling import NOW, fill_full


@pytest.mark.parametrize("width", [80, 120])
async def test_a_compilation_is_told_quietly_and_workers_stay(
    home: Home, monkeypatch: pytest.MonkeyPatch, width: int
) -> None:
    fill_full(home.database)
    build = LlamaBuild("compiling", 130.0)
    monkeypatch.setattr(feed, "llama_build", lambda now: build)
    async with driving(home, (width, 24)) as driver:
        await driver.read()
        (told,) = [line for line in driver.text().splitlines() if "llama.cpp" in line]
        assert "compiling llama.cpp in the background, 2 min 10 s · rollout" in told
        assert len(told) <= width
        build = LlamaBuild("failed", 9.0, NOW, "There is no C++ compiler.", "/src/.venv-llama.log")
        await driver.read()
        assert "llama.cpp could not be compiled (log /src/.venv-llama.log): There" in driver.text()
