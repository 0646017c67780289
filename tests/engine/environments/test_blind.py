"""Whole episodes with canned replies: what was asked, how often, and how long the environment took."""

from __future__ import annotations

from pathlib import Path

import pytest

from marlaas.engine.environments.alone import MOST_ASKS, play_blind
from marlaas.engine.errors import EnvironmentMissing

pytestmark = pytest.mark.processes

TURNS = """
from marlaas.plugins import Episode, env

@env
async def turns(ep: Episode, count: int = 3) -> float:
    for turn in range(count):
        await ep.ask(f"turn {turn}")
    return 0.0

@env
async def broken(ep: Episode) -> float:
    if ep.index % 2:
        raise RuntimeError("no")
    await ep.ask("once")
    return 0.0
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "plugins").mkdir()
    (tmp_path / "plugins" / "mine.py").write_text(TURNS)
    return tmp_path / "plugins"


async def test_every_turn_is_kept(folder: Path, tmp_path: Path) -> None:
    played = await play_blind("turns", {}, 4, [folder], tmp_path)
    assert [[ask.messages[-1].content for ask in one.asks] for one in played] == [["turn 0", "turn 1", "turn 2"]] * 4
    assert all(one.seconds > 0 for one in played)
    (long,) = await play_blind("turns", {"count": 5}, 1, [folder], tmp_path)
    assert len(long.asks) == 5
    (endless,) = await play_blind("turns", {"count": MOST_ASKS + 50}, 1, [folder], tmp_path)
    assert len(endless.asks) == MOST_ASKS


async def test_episodes_that_fail_are_left_out(folder: Path, tmp_path: Path) -> None:
    played = await play_blind("broken", {}, 4, [folder], tmp_path)
    assert len(played) == 2
    with pytest.raises(EnvironmentMissing):
        await play_blind("no such", {}, 4, [folder], tmp_path)
