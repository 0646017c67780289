"""Which files stay and which versions are named."""

from __future__ import annotations

from pathlib import Path

import pytest

from marlaas.engine.orchestrator.keeper import Keeper
from marlaas.engine.store.reader import Reader
from marlaas.engine.store.versions import Evaluation, NewVersion

from .test_learning import SPEC
from .world import World


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path, SPEC)


def fill(world: World, scores: list[float | None]) -> tuple[Keeper, Path]:
    """One version per score, with a file each."""
    versions = world.store.versions
    policy = versions.policy(world.task, "policy", {})
    folder = world.home.adapters / "task-1"
    folder.mkdir()
    for number, score in enumerate(scores):
        path = folder / f"v{number}"
        path.write_text("state")
        new = NewVersion(number, f"v{number}", "sum", str(path), 5)
        version = versions.commit_first(policy, new) if not number else versions.commit_step(policy, new, [], 0, {})
        if score is not None:
            versions.add_evaluation(policy, version.id, Evaluation(number, "e", score, 0, 3, None, {}))
    return Keeper(versions, policy), folder


def files(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


async def test_the_last_two_and_the_best_stay_and_so_does_what_is_being_measured(world: World) -> None:
    keeper, folder = fill(world, [0.9, None, 0.5, None, 0.4, None, None])
    await keeper.retain({3})
    assert files(folder) == ["v2", "v3", "v5", "v6"]
    await keeper.retain(set())
    assert files(folder) == ["v2", "v5", "v6"]


def test_the_best_trained_version_is_named_the_newest_among_equals(world: World) -> None:
    keeper, _ = fill(world, [0.9, 0.5, 0.5, 0.1])
    keeper.label()
    with Reader(world.home.database) as reader:
        assert {v.number: v.label for v in reader.versions(world.task)} == {0: "", 1: "", 2: "best", 3: "last"}


def test_what_a_crash_left_behind_is_swept(world: World) -> None:
    keeper, folder = fill(world, [None, None])
    (folder / ".v2.123").write_text("half")
    (folder / "v2").write_text("uncommitted")
    keeper.sweep(folder)
    assert files(folder) == ["v0", "v1"]
