"""Versions for clients: loaded when they are asked for, the least recently used leave, those in use stay."""

from __future__ import annotations

import asyncio
import threading
from contextlib import AsyncExitStack
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, strategies as st

from marlaas.engine.errors import AdapterError, WorkerDied
from marlaas.engine.gateway.serving.versions import LoadedVersions, Named
from marlaas.engine.wire import Refusal

from ...rollout.fake import FakeSampler
from .clientele import Clientele

ALL = ("1@0", "1@1", "1@2", "1@3", "2/player@0", "2/player@1")


def named(clientele: Clientele, name: str) -> Named:
    return Named(name, clientele.version("lab", name))


def live(sampler: FakeSampler) -> set[str]:
    """What a sampler serves, as it is named for people."""
    return {
        name.partition("/")[2].rpartition("-")[0] for name, version in sampler.versions.items() if not version.retired
    }


async def settle() -> None:
    for _ in range(20):
        await asyncio.sleep(0)


async def test_a_version_is_loaded_once_at_every_sampler(clientele: Clientele) -> None:
    first, second = FakeSampler(), FakeSampler()
    machine, loaded = clientele.machine(first, second), LoadedVersions(clientele.store.served)
    async with (
        loaded.lent(machine, named(clientele, "1@2")) as lent,
        loaded.lent(machine, named(clientele, "1@2")) as again,
    ):
        assert lent.name == again.name and lent.replicas is again.replicas
        checksum = clientele.version("lab", "1@2").checksum
        for sampler in (first, second):
            assert {name: version.checksum for name, version in sampler.versions.items()} == {lent.name: checksum}
        assert checksum in lent.name, "the name stands for these bytes alone"
    assert live(first) == {"1@2"}, "it stays for who comes next"


async def test_where_a_sampler_has_a_successor_it_is_loaded_there(clientele: Clientele) -> None:
    first, second, successor = FakeSampler(), FakeSampler(), FakeSampler()
    machine, loaded = clientele.machine(first, second), LoadedVersions(clientele.store.served)
    endpoints = dict(machine.endpoints)
    machine.endpoints, (dead, other) = endpoints, endpoints.values()
    async with loaded.lent(machine, named(clientele, "1@2")):
        pass
    dead.lost = True
    async with loaded.lent(machine, named(clientele, "1@2")) as lent:
        assert lent.replicas.endpoints == (other,)
    endpoints[dead.name] = replace(dead, sampler=successor, lost=False)
    async with loaded.lent(machine, named(clientele, "1@2")) as lent:
        assert live(successor) == {"1@2"} and len(lent.replicas.endpoints) == 2
    for endpoint in endpoints.values():
        endpoint.lost = True
    with pytest.raises(WorkerDied):
        async with loaded.lent(machine, named(clientele, "1@2")):
            pass


async def test_the_least_recently_used_leaves(clientele: Clientele) -> None:
    sampler = FakeSampler()
    machine, loaded = clientele.machine(sampler), LoadedVersions(clientele.store.served, most=2)
    for name in ("1@0", "1@1", "1@0", "1@2", "1@0", "1@1"):
        async with loaded.lent(machine, named(clientele, name)):
            pass
    await settle()
    assert live(sampler) == {"1@0", "1@1"}


async def test_the_base_is_served_as_a_version_that_adds_nothing(clientele: Clientele) -> None:
    sampler = FakeSampler()
    machine, loaded = clientele.machine(sampler), LoadedVersions(clientele.store.served)
    async with loaded.lent(machine, Named("tiny")) as lent:
        assert lent.name in sampler.versions
    assert not [*clientele.home.scratch.glob("served-base*")]


async def test_what_is_in_use_never_leaves(clientele: Clientele) -> None:
    sampler = FakeSampler()
    machine, loaded = clientele.machine(sampler), LoadedVersions(clientele.store.served, most=2)
    async with loaded.lent(machine, named(clientele, "1@0")), loaded.lent(machine, named(clientele, "1@1")):
        with pytest.raises(Refusal) as refused:
            async with loaded.lent(machine, named(clientele, "1@2")):
                pass
        assert refused.value.status == 503 and refused.value.retry_after
        await settle()
        assert live(sampler) == {"1@0", "1@1"}
    async with loaded.lent(machine, named(clientele, "1@2")):
        await settle()
        assert live(sampler) == {"1@1", "1@2"}


async def test_other_workers_begin_anew(clientele: Clientele) -> None:
    before, after = FakeSampler(), FakeSampler()
    old, new = clientele.machine(before), clientele.machine(after)
    loaded = LoadedVersions(clientele.store.served)
    async with loaded.lent(old, named(clientele, "1@0")), loaded.lent(new, named(clientele, "1@0")):
        assert live(after) == {"1@0"}


class Lost(FakeSampler):
    """Cannot load."""

    async def load(self, version: str, path: str) -> str:
        raise AdapterError("No.")


class Other(FakeSampler):
    """Loads other bytes than it was told to."""

    async def load(self, version: str, path: str) -> str:
        return "0" + await super().load(version, path)


@pytest.mark.parametrize("kind", [Lost, Other])
async def test_what_cannot_be_loaded_is_forgotten(clientele: Clientele, kind: type[FakeSampler]) -> None:
    sound = FakeSampler()
    machine, loaded = clientele.machine(sound, kind()), LoadedVersions(clientele.store.served)
    for _ in range(2):
        with pytest.raises(AdapterError):
            async with loaded.lent(machine, named(clientele, "1@0")):
                pass
        await settle()
        assert not loaded.names and not live(sound)


async def test_who_gives_up_spoils_it_for_nobody(clientele: Clientele) -> None:
    sampler, begun, go_on = FakeSampler(), asyncio.Event(), asyncio.Event()
    load = sampler.load

    async def slowly(version: str, path: str) -> str:
        begun.set()
        await go_on.wait()
        return await load(version, path)

    sampler.load = slowly  # type: ignore[method-assign]
    machine, loaded = clientele.machine(sampler), LoadedVersions(clientele.store.served)

    async def use() -> str:
        async with loaded.lent(machine, named(clientele, "1@0")) as lent:
            return lent.name

    impatient, patient = asyncio.ensure_future(use()), asyncio.ensure_future(use())
    await begun.wait()
    impatient.cancel()
    await asyncio.gather(impatient, return_exceptions=True)
    go_on.set()
    assert "1@0" in await patient


async def test_a_load_goes_on_without_its_client(clientele: Clientele) -> None:
    sampler, begun, go_on, loads = FakeSampler(), asyncio.Event(), asyncio.Event(), list[str]()
    load = sampler.load

    async def slowly(version: str, path: str) -> str:
        loads.append(version)
        begun.set()
        await go_on.wait()
        return await load(version, path)

    sampler.load = slowly  # type: ignore[method-assign]
    machine, loaded = clientele.machine(sampler), LoadedVersions(clientele.store.served, most=1)

    async def use(name: str) -> None:
        async with loaded.lent(machine, named(clientele, name)):
            pass

    client = asyncio.ensure_future(use("1@0"))
    await begun.wait()
    client.cancel()
    await asyncio.gather(client, return_exceptions=True)
    others = [asyncio.ensure_future(use("1@0")) for _ in range(2)]
    await settle()
    go_on.set()
    await asyncio.gather(*others)
    assert len(loads) == 1
    await use("1@1")
    await use("1@0")
    assert len(loads) == 3 and live(sampler) == {"1@0"}


async def test_the_base_is_written_by_one_at_a_time(clientele: Clientele) -> None:
    """Also if the client for whom it is written leaves: the thread goes on."""
    begun, go_on, writing = threading.Event(), threading.Event(), list[Path]()
    machine, loaded = clientele.machine(FakeSampler()), LoadedVersions(clientele.store.served)
    write = machine.write_bare

    def slowly(path: Path) -> str:
        assert not writing
        writing.append(path)
        begun.set()
        assert go_on.wait(30)
        written = write(path)
        writing.clear()
        return str(written)

    machine.write_bare = slowly

    async def use() -> None:
        async with loaded.lent(machine, Named("tiny")):
            pass

    client = asyncio.ensure_future(use())
    await asyncio.to_thread(begun.wait)
    client.cancel()
    await asyncio.gather(client, return_exceptions=True)
    other = asyncio.ensure_future(use())
    await settle()
    go_on.set()
    await other


async def test_a_file_in_use_is_held(clientele: Clientele) -> None:
    machine, loaded = clientele.machine(FakeSampler()), LoadedVersions(clientele.store.served)
    version = clientele.version("lab", "1@0").id
    assert not clientele.store.served.holds(version)
    async with loaded.lent(machine, named(clientele, "1@0")):
        assert clientele.store.served.holds(version)
    assert not clientele.store.served.holds(version)


async def test_a_file_that_is_gone(own: Clientele) -> None:
    meant = named(own, "1@0")
    assert meant.version is not None
    Path(meant.version.path).unlink()
    loaded = LoadedVersions(own.store.served)
    with pytest.raises(AdapterError):
        async with loaded.lent(own.machine(FakeSampler()), meant):
            pass


@given(st.lists(st.tuples(st.sampled_from(ALL), st.booleans()), max_size=25))
def test_never_more_than_may_be_and_never_one_in_use(clientele: Clientele, uses: list[tuple[str, bool]]) -> None:
    """Uses that last are kept for a while; whatever comes, they are served and the bound holds."""

    async def run() -> None:
        sampler, most = FakeSampler(), 3
        machine, loaded = clientele.machine(sampler), LoadedVersions(clientele.store.served, most=most)
        lasting: list[tuple[str, AsyncExitStack]] = []
        for name, lasts in uses:
            stack = AsyncExitStack()
            in_use = {one for one, _ in lasting}
            try:
                await stack.enter_async_context(loaded.lent(machine, named(clientele, name)))
            except Refusal:
                assert len(in_use) == most and name not in in_use
                await lasting.pop(0)[1].aclose()
                continue
            assert name in live(sampler) and in_use <= live(sampler) and len(loaded.names) <= most
            if lasts:
                lasting.append((name, stack))
            else:
                await stack.aclose()
        for _, stack in lasting:
            await stack.aclose()

    asyncio.run(run())
