"""What the sampler holds for a policy: never more than is current or in use, whatever is cancelled."""

from __future__ import annotations

import asyncio
from pathlib import Path

import numpy as np
import pytest

from marlaas.engine.adapters.statefile import PolicyState, StateHeader, checksum, write_state
from marlaas.engine.errors import AdapterError
from marlaas.engine.orchestrator.shelf import Shelf
from marlaas.engine.store.versions import Version

from ..rollout.fake import FakeSampler


def version(folder: Path, number: int, said: str | None = None) -> Version:
    path, adapter = folder / f"v{number}", {"m.lora_A": np.full((1, 1), number, np.float32)}
    size = write_state(path, PolicyState(StateHeader(1, 1.0, number, "base"), adapter), sync=False)
    return Version(number, 1, number, f"v{number}", said or checksum(adapter), str(path), size)


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
    shelf = Shelf(sampler)
    old, new = version(tmp_path, 1), version(tmp_path, 2)
    await shelf.publish(old)
    with shelf.hold(old):
        with shelf.hold(old):
            await shelf.publish(new)
        await asyncio.sleep(0)
        assert served(sampler) == {"v1", "v2"}
    await asyncio.sleep(0)
    assert served(sampler) == {"v2"} and shelf.current == new
    await shelf.clear()
    assert served(sampler) == set() and shelf.current is None


async def test_other_bytes_than_were_committed_are_never_current(tmp_path: Path) -> None:
    sampler = FakeSampler()
    shelf = Shelf(sampler)
    with pytest.raises(AdapterError, match="was committed"):
        await shelf.publish(version(tmp_path, 1, said="other"))
    assert shelf.current is None
    await shelf.clear()
    assert served(sampler) == set()


async def test_a_publish_that_is_cut_off_leaves_nothing_behind(tmp_path: Path) -> None:
    sampler = SlowSampler()
    shelf = Shelf(sampler)
    publishing = asyncio.ensure_future(shelf.publish(version(tmp_path, 1)))
    await asyncio.sleep(0)
    publishing.cancel()
    await asyncio.sleep(0)
    sampler.go.set()
    with pytest.raises(asyncio.CancelledError):
        await publishing
    await shelf.clear()
    assert served(sampler) == set()


async def test_a_version_that_is_lent_is_served_beside_the_current_one(tmp_path: Path) -> None:
    sampler = FakeSampler()
    shelf = Shelf(sampler)
    current, old = version(tmp_path, 2), version(tmp_path, 1)
    await shelf.publish(current)
    async with shelf.lent(old):
        assert served(sampler) == {"v1", "v2"} and shelf.current == current
    await asyncio.sleep(0)
    assert served(sampler) == {"v2"}
    with pytest.raises(AdapterError, match="was committed"):
        async with shelf.lent(version(tmp_path, 3, said="other bytes")):
            raise AssertionError("it is never lent")
    await asyncio.sleep(0)
    assert served(sampler) == {"v2"}
