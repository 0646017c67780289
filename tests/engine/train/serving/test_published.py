"""What the sampler holds for a policy: never more than is current or in use, whatever is cancelled."""

from __future__ import annotations

import asyncio
from pathlib import Path

import numpy as np
import pytest

from marlaas.engine.adapters.statefile import PolicyState, StateHeader, checksum, write_state
from marlaas.engine.errors import AdapterError, WorkerDied
from marlaas.engine.machine.routing.assignment import Share
from marlaas.engine.rollout.slots import SamplerEndpoint
from marlaas.engine.store.versions import Version
from marlaas.engine.train.publishing import PublishedVersions

from ...rollout.endpoints import endpoint
from ...rollout.fake import FakeSampler

ONLY = (Share("1", 1.0),)
BOTH = (Share("2", 0.75), Share("1", 0.25))


def version(folder: Path, number: int, said: str | None = None) -> Version:
    path, adapter = folder / f"v{number}", {"m.lora_A": np.full((1, 1), number, np.float32)}
    size = write_state(path, PolicyState(StateHeader(1, 1.0, number, "base"), adapter), sync=False)
    return Version(number, 1, number, f"v{number}", said or checksum(adapter), str(path), size)


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


def names(published: PublishedVersions, version: Version) -> list[str]:
    return [endpoint.name for endpoint in published.replicas(version)]


async def test_a_version_is_where_samplers_live(tmp_path: Path) -> None:
    """At the successor of a dead one it is loaded anew, when it is to be served there again."""
    first, second = FakeSampler(), FakeSampler()
    every = endpoints(first, second)
    published, current, old = PublishedVersions(every), version(tmp_path, 2), version(tmp_path, 1)
    await published.publish(current, BOTH)
    every["2"].lost = True
    assert names(published, current) == ["1"] and published.serves(current)
    async with published.lent(old):
        assert names(published, old) == ["1"]
    every["1"].lost = True
    with pytest.raises(WorkerDied, match="No sampler serves v2"):
        published.replicas(current)
    assert not published.serves(current)
    later = FakeSampler()
    every["2"] = endpoint(later, 4, 64, "2")
    async with published.lent(current, (Share("2", 1.0),)):
        assert served(later) == {"v2"} and names(published, current) == ["2"]
    await published.clear()
    assert served(later) == set()


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


async def test_a_lent_version_is_served_beside_the_current_one(tmp_path: Path) -> None:
    sampler = FakeSampler()
    published = PublishedVersions(endpoints(sampler))
    current, old = version(tmp_path, 2), version(tmp_path, 1)
    await published.publish(current, ONLY)
    async with published.lent(old):
        assert served(sampler) == {"v1", "v2"} and published.current == current
    await asyncio.sleep(0)
    assert served(sampler) == {"v2"}
    with pytest.raises(AdapterError, match="was committed"):
        async with published.lent(version(tmp_path, 3, said="other bytes")):
            raise AssertionError("it is never lent")
    await asyncio.sleep(0)
    assert served(sampler) == {"v2"}


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


async def test_a_version_is_at_the_samplers_of_its_shares(tmp_path: Path) -> None:
    published = PublishedVersions(endpoints(FakeSampler(), FakeSampler()))
    one, both = version(tmp_path, 1), version(tmp_path, 2)
    with pytest.raises(WorkerDied, match="No sampler serves v1"):
        published.replicas(one)
    await published.publish(one, ONLY)
    with published.hold(one):
        await published.publish(both, BOTH)
        assert [names(published, one), names(published, both)] == [["1"], ["2", "1"]]


async def test_what_is_looked_at_beforehand_is_asked_nothing_else(tmp_path: Path) -> None:
    first, second = FakeSampler(), FakeSampler()
    published = PublishedVersions(endpoints(first, second))
    old, new = version(tmp_path, 1), version(tmp_path, 2)
    await published.publish(old, ONLY)
    await published.spread(old, BOTH)
    assert served(second) == {"v1"} and names(published, old) == ["1"]
    await published.publish(new, (Share("2", 1.0),))
    await asyncio.sleep(0)
    assert served(first) == set() and served(second) == {"v2"}, "no home keeps a version that nobody plays"
    await published.clear()
    assert served(second) == set()


async def test_one_home_with_other_bytes_refuses_the_version(tmp_path: Path) -> None:
    class Wrong(FakeSampler):
        async def load(self, version: str, path: str) -> str:
            await super().load(version, path)
            return "other"

    samplers = FakeSampler(), Wrong()
    published = PublishedVersions(endpoints(*samplers))
    with pytest.raises(AdapterError, match="loaded other as v1"):
        await published.publish(version(tmp_path, 1), BOTH)
    assert published.current is None
    await published.clear()
    assert [served(sampler) for sampler in samplers] == [set(), set()]
