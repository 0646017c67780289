"""Asking an engine to drain: what is waited for, what is told meanwhile, and one that hangs."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from marlaas.engine.daemon import control
from marlaas.engine.daemon.lock import EngineLock
from marlaas.engine.errors import EngineUnreachable
from marlaas.engine.home.paths import Home
from marlaas.engine.store.store import Store

from ..by_hand import change


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Home:
    monkeypatch.setattr(control, "POLL", 0.0)
    return Home(tmp_path).create()


@pytest.fixture
def store(home: Home) -> Iterator[Store]:
    store = Store(home.database, "tiny")
    yield store
    store.close()


def test_no_engine_is_no_error(home: Home) -> None:
    assert not control.drain(home, print)


def test_it_waits_until_the_engine_has_gone_and_says_for_what(home: Home, store: Store) -> None:
    """The engine is this process: it goes on a little with each thing that is told."""
    lock, told = EngineLock(home.lock), list[str]()
    lock.acquire()
    store.telemetry.heartbeat(store.incarnation, "draining", "2 tasks finish.")

    def notice(text: str) -> None:
        told.append(text)
        store.telemetry.heartbeat(store.incarnation, "draining", "1 task finishes.")
        if len(told) == 2:
            lock.release()

    assert control.drain(home, notice)
    assert told == ["2 tasks finish.", "1 task finishes."]
    assert [command.kind for command in store.tasks.new_commands()] == ["drain"]


def test_an_engine_that_drains_hears_commands(home: Home, store: Store) -> None:
    lock = EngineLock(home.lock)
    lock.acquire()
    for state, hears in (("starting", False), ("running", True), ("draining", True), ("stopping", False)):
        store.telemetry.heartbeat(store.incarnation, state)
        assert control.alive(home) is hears
    lock.release()
    assert not control.alive(home)


def test_an_engine_that_says_nothing_is_not_waited_for(home: Home, store: Store) -> None:
    lock = EngineLock(home.lock)
    lock.acquire()
    change(home.database, "UPDATE engines SET heartbeat = ?", time.time() - 2 * control.STALE)
    with pytest.raises(EngineUnreachable, match="does not answer"):
        control.drain(home, print)
    lock.release()
