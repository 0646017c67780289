"""The engine's look at the cards: rows for the screen, sentences for the log, on an imaginary machine."""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, cast

import pytest

from marlaas.engine.daemon import heartbeat
from marlaas.engine.daemon.heartbeat import LEAVE, CardMonitor
from marlaas.engine.devices.machine import Holder
from marlaas.engine.devices.survey import probe
from marlaas.engine.devices.usable import Ours, ResourceSettings, claimed, usable_resources
from marlaas.engine.errors import ConfigError
from marlaas.engine.store.queries.machine import devices, held_by
from marlaas.engine.store.queries.reader import Reader
from marlaas.engine.store.store import Store

from ...imaginary.cards import GB, Card, Held, ImaginaryMachine, imagine, uuid_of

pytestmark = pytest.mark.processes
LOST = 15


@dataclass
class FakeSupervisor:
    """It is planned on whatever cards a look at the imaginary machine finds."""

    ours: Ours
    resources: ResourceSettings
    ready: bool = True
    planned: list[set[str]] = field(default_factory=list)

    async def place_anew(self) -> bool:
        usable = usable_resources(claimed(probe(self.ours.processes), self.ours), self.resources, {}, "me")
        cards = {gpu.uuid for gpu in usable.machine.gpus}
        if not cards:
            raise ConfigError("There is no card.")
        self.planned.append(cards)
        self.ours = replace(self.ours, cards=tuple(cards))
        return True


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> ImaginaryMachine:
    return imagine(monkeypatch, tmp_path)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    store = Store(tmp_path / "marlaas.db", "tiny")
    yield store
    store.close()


async def test_cards_are_watched(
    machine: ImaginaryMachine, store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    said: list[tuple[str, str]] = []
    looks = [
        lambda: machine.have(Card(used=3000, utilisation=40, held=(Held(os.getpid(), 3000),)), Card()),
        lambda: machine.have(Card(used=9000), Card()),
        lambda: machine.have(Card(code=LOST), Card(used=9000)),
    ]
    seen = []

    async def next_look(seconds: float) -> None:
        with Reader(tmp_path / "marlaas.db") as reader:
            seen.append(devices(reader))
        if not looks:
            raise asyncio.CancelledError
        looks.pop(0)()

    monkeypatch.setattr(asyncio, "sleep", next_look)
    looks.pop(0)()
    resources = ResourceSettings(gpus=(0, 7))
    supervisor = FakeSupervisor(Ours((os.getpid(),), (uuid_of(0),)), resources)
    monitor = CardMonitor(store, resources, cast(Any, supervisor), lambda kind, text, level: said.append((level, text)))
    with contextlib.suppress(asyncio.CancelledError):
        await monitor.run()
    first, second, third = seen
    assert [[row.label for row in look] for look in seen] == [["gpu 0", "gpu 1"], ["gpu 0", "gpu 1"], ["gpu 1"]]
    assert second[0].reason == "" and len(second[0].holders) == 1 and third[0].reason
    assert (first[0].memory, first[0].free, first[0].utilisation) == (80 * GB * 10**6, 77 * GB * 10**6, 0.4)
    assert first[0].reason == "" and "`gpus` under [resources]" in first[1].reason
    (holder,) = first[0].holders
    assert holder == Holder(os.getpid(), holder.account, 3 * GB * 10**6, ours=True)
    assert held_by(first) == {os.getpid(): 3 * GB * 10**6}
    assert said == [
        ("info", "`gpus` under [resources] names 7, which is no card here."),
        ("info", "gpu 1 is left alone: `gpus` under [resources] leaves it out."),
        ("warning", "gpu 0 cannot be used: GPU is lost; restarting the machine may bring it back."),
        ("warning", "somebody unseen took memory of gpu 1: 9.0 GB are theirs, 71.0 GB are free."),
    ]


LEFT = "The workers go elsewhere: gpu 0 may not be used any more."
TAKEN = Card(used=9000, held=(Held(1, 9000),))  # the first process belongs to the system's administrator


@pytest.mark.parametrize("gone", [Card(code=LOST), TAKEN], ids=["it fails", "somebody takes it"])
async def test_work_leaves_a_lost_card_and_takes_a_free_one(
    machine: ImaginaryMachine, store: Store, monkeypatch: pytest.MonkeyPatch, gone: Card
) -> None:
    mine, resources = Card(used=3000, held=(Held(os.getpid(), 3000),)), ResourceSettings()
    machine.have(mine, Card())
    monkeypatch.setattr(heartbeat, "TAKE", 4)
    monkeypatch.setattr(heartbeat, "own_account", lambda: "me")
    supervisor, said = FakeSupervisor(Ours((os.getpid(),), (uuid_of(0),)), resources), list[str]()
    plans = [(gone, mine), *[(gone, mine)] * LEAVE, *[(Card(), mine)] * 4]

    async def next_look(seconds: float) -> None:
        if not plans:
            raise asyncio.CancelledError
        machine.have(*plans.pop(0))

    monkeypatch.setattr(asyncio, "sleep", next_look)
    monitor = CardMonitor(
        store,
        resources,
        cast(Any, supervisor),
        lambda kind, text, level: said.append(text) if kind == "placement" else None,
    )
    with contextlib.suppress(asyncio.CancelledError):
        await monitor.run()
    assert supervisor.planned == [{uuid_of(1)}, {uuid_of(0), uuid_of(1)}]
    assert said == [LEFT, "The workers go elsewhere: further cards may be used."]


async def test_where_nothing_else_can_be_planned_that_is_said_once(
    machine: ImaginaryMachine, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine.have(Card())
    supervisor, said = FakeSupervisor(Ours((os.getpid(),), (uuid_of(0),)), ResourceSettings(gpus=())), list[str]()
    looks = [Card(code=LOST)] * 3 * LEAVE

    async def next_look(seconds: float) -> None:
        if not looks:
            raise asyncio.CancelledError
        machine.have(looks.pop())

    monkeypatch.setattr(asyncio, "sleep", next_look)
    monitor = CardMonitor(
        store,
        ResourceSettings(),
        cast(Any, supervisor),
        lambda kind, text, level: said.append(text) if kind == "placement" else None,
    )
    with contextlib.suppress(asyncio.CancelledError):
        await monitor.run()
    assert said == ["The workers cannot leave gpu 0: There is no card."] and supervisor.ours.cards == (uuid_of(0),)


async def test_without_a_driver_nothing_is_started(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(heartbeat, "has_driver", lambda: False)
    monkeypatch.setattr(heartbeat, "probe", lambda ours: pytest.fail("there is nothing to ask"))
    monitor = CardMonitor(
        store, ResourceSettings(), cast(Any, FakeSupervisor(Ours(), ResourceSettings())), lambda *said: None
    )
    running = asyncio.ensure_future(monitor.run())
    await asyncio.sleep(0)
    assert not running.done()
    running.cancel()
    with Reader(tmp_path / "marlaas.db") as reader:
        assert devices(reader) == []
