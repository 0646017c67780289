"""What samplers hold for a policy, and which files stay."""

from __future__ import annotations

import asyncio
from pathlib import Path

import numpy as np
import pytest

from marlaas.engine.adapters.statefile import PolicyState, StateHeader, checksum, read_state, write_state
from marlaas.engine.errors import AdapterError
from marlaas.engine.machine.routing.assignment import Share
from marlaas.engine.rollout.slots import SamplerEndpoint
from marlaas.engine.store.experience import OpenPlay
from marlaas.engine.store.queries.reader import Reader
from marlaas.engine.store.versions import Evaluation, NewVersion, Version
from marlaas.engine.train.publishing import PublishedVersions, Retention

from ..by_hand import change
from ..queue.scheduler.world import World
from ..rollout.endpoints import endpoint
from ..rollout.fake import FakeSampler
from .test_learning import SPEC

ONLY = (Share("1", 1.0),)


def version(folder: Path, number: int, said: str | None = None) -> Version:
    path, adapter = folder / f"v{number}", {"m.lora_A": np.full((1, 1), number, np.float32)}
    size = write_state(path, PolicyState(StateHeader(1, 1.0, number, "base"), adapter), sync=False)
    return Version(
        id=number,
        policy=1,
        number=number,
        name=f"v{number}",
        checksum=said or checksum(adapter),
        path=str(path),
        size=size,
    )


def endpoints(*samplers: FakeSampler) -> dict[str, SamplerEndpoint]:
    return {f"{n}": endpoint(sampler, 4, 64, f"{n}") for n, sampler in enumerate(samplers, 1)}


class SlowSampler(FakeSampler):
    """Loads once ``go`` is set, also for a caller who has gone."""

    def __init__(self) -> None:
        super().__init__()
        self.go = asyncio.Event()

    async def load(self, version: str, path: str) -> str:
        await self.go.wait()
        return await super().load(version, path)


def served(sampler: FakeSampler) -> set[str]:
    return {name for name, version in sampler.versions.items() if not version.retired}


async def test_an_old_version_stays_for_its_holders_alone(tmp_path: Path) -> None:
    sampler = FakeSampler()
    published = PublishedVersions(endpoints(sampler))
    old, new = version(tmp_path, 1), version(tmp_path, 2)
    await published.publish(old, ONLY)
    with published.hold(old):
        with published.hold(old):
            await published.publish(new, ONLY)
        await asyncio.sleep(0)
        assert served(sampler) == {"v1", "v2"}
    await asyncio.sleep(0)
    assert served(sampler) == {"v2"} and published.current == new
    await published.clear()
    assert served(sampler) == set() and published.current is None


async def test_other_bytes_than_were_committed_are_never_current(tmp_path: Path) -> None:
    sampler = FakeSampler()
    published = PublishedVersions(endpoints(sampler))
    with pytest.raises(AdapterError, match="was committed"):
        await published.publish(version(tmp_path, 1, said="other"), ONLY)
    assert published.current is None
    await published.clear()
    assert served(sampler) == set()


async def test_a_publish_that_is_cut_off_leaves_nothing_behind(tmp_path: Path) -> None:
    sampler = SlowSampler()
    published = PublishedVersions(endpoints(sampler))
    publishing = asyncio.ensure_future(published.publish(version(tmp_path, 1), ONLY))
    await asyncio.sleep(0)
    publishing.cancel()
    await asyncio.sleep(0)
    sampler.go.set()
    with pytest.raises(asyncio.CancelledError):
        await publishing
    await published.clear()
    assert served(sampler) == set()


async def test_a_version_is_held_before_a_sampler_has_it(tmp_path: Path) -> None:
    """Else its file could go while it is loaded."""
    sampler = SlowSampler()
    published = PublishedVersions(endpoints(sampler))
    old = version(tmp_path, 1)

    async def play() -> None:
        async with published.lent(old, ONLY):
            assert published.holds(old)

    plays = [asyncio.ensure_future(play()) for _ in range(2)]
    await asyncio.sleep(0)
    assert published.holds(old) and served(sampler) == set()
    sampler.go.set()
    await asyncio.gather(*plays)
    assert not published.holds(old)


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path, SPEC)


def fill(world: World, scores: list[float | None], every: int = 0) -> tuple[Retention, Path]:
    """One version per score, with a file each."""
    versions = world.store.versions
    policy = versions.policy(world.task, "policy", {})
    folder = world.home.adapters / "task-1"
    folder.mkdir()
    for number, score in enumerate(scores):
        path, adapter = folder / f"v{number}", {"m.lora_A": np.full((1, 8), number, np.float32)}
        size = write_state(
            path, PolicyState(StateHeader(1, 1.0, number, "base"), adapter, adapter, adapter), sync=False
        )
        new = NewVersion(number, f"v{number}", checksum(adapter), str(path), size)
        version = versions.commit_first(policy, new) if not number else versions.commit_step(policy, new, [], 0, {})
        if score is not None:
            world.store.evaluations.add(
                policy,
                version.id,
                Evaluation(step=number, environment_version="e", score=score, stderr=0, n=3, floor=None, metrics={}),
            )
    return Retention(world.store, world.task, policy, every), folder


def files(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def with_moments(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir() if read_state(path).resumable)


async def test_the_last_two_the_best_and_the_measured_stay(world: World) -> None:
    retention, folder = fill(world, [0.9, None, 0.5, None, 0.4, None, None])
    await retention.retain({3})
    assert files(folder) == ["v2", "v3", "v5", "v6"]
    await retention.retain(set())
    assert files(folder) == ["v2", "v5", "v6"]


async def test_moments_stay_for_resuming_and_missing_scores(world: World) -> None:
    retention, folder = fill(world, [None] * 7, every=2)
    before = {path.name: read_state(path).adapter["m.lora_A"].tolist() for path in folder.iterdir()}
    await retention.retain({1, 2})
    assert files(folder) == ["v0", "v1", "v2", "v4", "v5", "v6"]
    assert with_moments(folder) == ["v1", "v2", "v5", "v6"]
    await retention.retain(set())
    assert files(folder) == ["v0", "v2", "v4", "v5", "v6"] and with_moments(folder) == ["v5", "v6"]
    assert all(read_state(path).adapter["m.lora_A"].tolist() == before[path.name] for path in folder.iterdir())
    rows = world.query("SELECT name, size, resumable FROM versions WHERE state = 'committed'")
    assert all(row["size"] == (folder / row["name"]).stat().st_size for row in rows)
    assert {row["name"] for row in rows if row["resumable"]} == {"v5", "v6"}


async def test_what_open_plays_and_holders_need_stays(world: World) -> None:
    """An open play is taken up again by the version's number and checksum; one of other bytes is another version."""
    retention, folder = fill(world, [None] * 6)
    first, second = (row["checksum"] for row in world.query("SELECT checksum FROM versions ORDER BY number LIMIT 2"))
    speaking = {"policy": (0, first), "old": (2, second)}
    play = OpenPlay(world.task, 9, ("policy",), 0, 9, "", "e1", speaking)
    world.store.open_plays.keep(play, [])
    await retention.retain(set())
    assert files(folder) == ["v0", "v4", "v5"] and with_moments(folder) == ["v4", "v5"]
    world.store.open_plays.drop(play)
    held = Retention(world.store, world.task, 1, held=lambda version: version.number == 0)
    await held.retain(set())
    assert files(folder) == ["v0", "v4", "v5"]
    await retention.retain(set())
    assert files(folder) == ["v4", "v5"]


async def test_what_a_death_between_file_and_row_left_is_done_again(world: World) -> None:
    """The file has no moments, the row says that it has: the next tidying finds the same file and says so."""
    retention, folder = fill(world, [None] * 5, every=2)
    await retention.retain(set())
    change(world.home.database, "UPDATE versions SET resumable = 1, size = 0 WHERE name = 'v2'")
    await retention.retain(set())
    (row,) = world.query("SELECT size, resumable FROM versions WHERE name = 'v2'")
    assert row == {"size": (folder / "v2").stat().st_size, "resumable": 0}


async def test_a_damaged_file_is_left_alone_and_told_of_once(world: World) -> None:
    retention, folder = fill(world, [None] * 6, every=2)
    (folder / "v0").write_bytes(b"damaged")
    for _ in range(2):
        await retention.retain(set())
    told = [row["message"] for row in world.query("SELECT message FROM events WHERE kind = 'adapter'")]
    assert len(told) == 1 and "v0: the state file is damaged" in told[0]
    assert (folder / "v0").read_bytes() == b"damaged"


async def test_old_trajectories_shrink_to_text_and_rewards(tmp_path: Path) -> None:
    world = World(tmp_path, SPEC)
    assert (await world.go()).state == "done"
    await Retention(world.store, world.task, 1, token_steps=2).retain(set())
    rows = world.query(
        "SELECT g.step, j.length, length(j.tokens) AS tokens, length(j.mask) AS mask, j.reward, j.turns"
        " FROM trajectories j JOIN groups g ON g.id = j.\"group\" WHERE g.state = 'consumed'"
    )
    old = [row for row in rows if row["step"] <= SPEC.steps - 2]
    assert old and all(row["length"] > 0 and not row["tokens"] and not row["mask"] for row in old)
    assert all(row["tokens"] and row["length"] is None for row in rows if row["step"] > SPEC.steps - 2)
    assert all(row["reward"] is not None and len(row["turns"]) > 2 for row in rows)
    with Reader(world.home.database) as reader:
        assert all(row.tokens > 0 for row in reader.trajectories(world.task, 1000) if row.turns)
