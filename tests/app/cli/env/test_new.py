"""``env new``: every template is served as it is, and nothing is ever written over."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from marlaas.app.operations.environments.templates import SHAPES, written
from marlaas.engine.environments.conformance.check import Scope, check
from marlaas.engine.environments.protocol import EpisodeSpec
from marlaas.engine.environments.service import EnvironmentService
from marlaas.engine.home.paths import TEMPLATES, Home
from marlaas.engine.trajectories import Split
from marlaas.plugins.messages import Ask, Reply, ToolCall

from ...commanding import Commander


@pytest.mark.parametrize("shape", SHAPES)
def test_a_template_is_written_under_the_name(home: Home, marlaas: Commander, shape: str) -> None:
    said = marlaas("env", "new", "my_game", "--shape", shape)
    assert said.code == 0
    text = (home.plugins / "my_game.py").read_text()
    assert "my_game" in text and "my_env" not in text
    assert len(text.splitlines()) < 50, "a template is read before it is changed"
    assert said.out.splitlines() == [str(path) for path in sorted(home.plugins.iterdir(), key=lambda p: p.suffix)]
    for verb in ("env check my_game", "env play my_game", "submit"):
        assert f"marlaas {verb}" in said.err


def test_every_shape_has_its_template_and_the_other_way_round() -> None:
    assert {path.stem for path in TEMPLATES.glob("*.py")} == set(SHAPES)


def test_another_folder_is_named_in_what_comes_next(tmp_path: Path, home: Home, marlaas: Commander) -> None:
    said = marlaas("env", "new", "my_game", "--to", str(tmp_path / "envs"))
    assert said.code == 0 and (tmp_path / "envs" / "my_game.py").is_file() and not home.root.exists()
    assert f"marlaas env play {tmp_path / 'envs' / 'my_game.py'}" in said.err and str(home.plugins) in said.err


@pytest.mark.parametrize("other", ["game.py", "game.toml", "game.jsonl", "game"])
def test_nothing_is_written_over(home: Home, marlaas: Commander, other: str) -> None:
    home.create()
    taken = home.plugins / other
    taken.mkdir() if other == "game" else taken.write_text("mine")
    said = marlaas("env", "new", "game", "--shape", "rows")
    assert said.code == 2 and "is there already" in said.err and list(home.plugins.iterdir()) == [taken]


@pytest.mark.parametrize(
    "name", ["1up", "my-game", "my game", "", "class", "größe", "x" * 65, "../up", "_hidden", ".hidden", "ep", "env"]
)
def test_a_name_must_be_one(home: Home, marlaas: Commander, name: str) -> None:
    said = marlaas("env", "new", "--", name)
    assert said.code == 2 and said.err.startswith("marlaas: ") and not list(home.create().plugins.iterdir())


def test_a_bundled_name_would_hide_the_bundled_one(home: Home, marlaas: Commander) -> None:
    assert "would hide it" in marlaas("env", "new", "arithmetic").err


async def answer(ask: Ask) -> Reply:
    """What solves every template for some draws, and breaks none for any."""
    said = ask.messages[-1].content
    if ask.tools:
        return Reply("", "tool", 0, (ToolCall("price", {"item": "ink"}), ToolCall("buy", {"item": "no such thing"})))
    return Reply("print(1)" if "program" in said else "7", "stop", 0)


@pytest.fixture
async def served(tmp_path: Path) -> AsyncIterator[EnvironmentService]:
    """Every template, under a name of its own."""
    folder = tmp_path / "plugins"
    folder.mkdir()
    for shape in SHAPES:
        for file, text in written(f"my_{shape}", shape).items():
            (folder / file).write_text(text)
    service = EnvironmentService([folder], tmp_path / "scratch")
    await asyncio.wait(await service.scan())
    yield service
    await service.stop()


@pytest.mark.processes
async def test_every_template_is_served_and_played(served: EnvironmentService) -> None:
    for shape in SHAPES:
        with await served.bind(f"my_{shape}") as lease:
            config = served.validate(lease.environment, {})
            draws: list[tuple[Split, int]] = [("train", 0), ("train", 1), ("eval", 0), ("eval", 1)]
            specs = [EpisodeSpec(split, index, 0, 0, config) for split, index in draws]
            played = [await served.play(lease, spec, answer) for spec in specs]
        assert [(shape, ended.status, ended.failure) for ended in played] == [(shape, "ok", None)] * len(specs)


@pytest.mark.slow
@pytest.mark.processes
async def test_every_template_is_found_sound(served: EnvironmentService) -> None:
    for shape in SHAPES:
        found = await check(served, f"my_{shape}", scope=Scope(prompts=16))
        assert [(shape, finding) for finding in found if finding.level != "note"] == []
