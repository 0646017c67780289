"""The engine's look at the cards: rows for the screen, sentences for the log, on an imaginary machine."""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from marlaas.engine.config import ResourceSettings
from marlaas.engine.daemon import cards
from marlaas.engine.daemon.cards import CardWatch
from marlaas.engine.devices.machine import Holder
from marlaas.engine.store.device_rows import devices, held_by
from marlaas.engine.store.reader import Reader
from marlaas.engine.store.store import Store

from ...imaginary.cards import GB, Card, Held, ImaginaryMachine, imagine, uuid_of

pytestmark = pytest.mark.processes
LOST = 15


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
    watch = CardWatch(
        store,
        resources,
        lambda: [os.getpid()],
        lambda: [uuid_of(0)],
        lambda kind, text, level: said.append((level, text)),
    )
    with contextlib.suppress(asyncio.CancelledError):
        await watch.run()
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


async def test_without_a_driver_nothing_is_started(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cards, "has_driver", lambda: False)
    monkeypatch.setattr(cards, "probe", lambda ours: pytest.fail("there is nothing to ask"))
    watch = CardWatch(store, ResourceSettings(), list, list, lambda *said: None)
    running = asyncio.ensure_future(watch.run())
    await asyncio.sleep(0)
    assert not running.done()
    running.cancel()
    with Reader(tmp_path / "marlaas.db") as reader:
        assert devices(reader) == []
