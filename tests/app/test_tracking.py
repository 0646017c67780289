"""What an observer sends: each step and score once, whoever dies or fails; nothing that nobody asked for."""

from __future__ import annotations

import asyncio
import json
import math
import sqlite3
from collections.abc import Callable, Mapping
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from marlaas.engine.errors import StoreError
from marlaas.engine.home.paths import Home
from marlaas.engine.home.settings import TrackSettings
from marlaas.engine.tracking import observer, processes
from marlaas.engine.tracking.clients import CLIENTS, Run
from marlaas.engine.tracking.observer import Observer

from .filling import Filling


@dataclass
class Board:
    """What a tracker has been sent, and whether it is down."""

    logged: list[tuple[str, int, Mapping[str, float]]] = field(default_factory=list)
    begun: list[Run] = field(default_factory=list)
    ended: list[str] = field(default_factory=list)
    down: bool = False

    def begin(self, run: Run) -> Board.Tracker:
        self.begun.append(run)
        return Board.Tracker(self, run)

    @dataclass
    class Tracker:
        """One run of it."""

        board: Board
        run: Run

        def log(self, step: int, when: float, values: Mapping[str, float]) -> None:
            if self.board.down:
                raise ConnectionError("no route to the board")
            self.board.logged.append((self.run.id, step, values))

        def flush(self) -> None:
            pass

        def end(self, state: str) -> None:
            self.board.ended.append(state)

    def steps(self) -> list[int]:
        return [step for _, step, values in self.logged if "train/reward" in values]


@pytest.fixture
def board(monkeypatch: pytest.MonkeyPatch) -> Board:
    board = Board()
    monkeypatch.setitem(CLIENTS, "trackio", board.begin)
    return board


@pytest.fixture
def observing(home: Home, tmp_path: Path) -> Callable[..., Observer]:
    def make(*to: str, told: list[str] | None = None) -> Observer:
        settings = TrackSettings(to=to, project="mine", folder=str(tmp_path / "out"))
        return Observer(home, "trackio", settings, (told if told is not None else []).append)

    return make


def change(filling: Filling, sql: str, value: object) -> None:
    with closing(sqlite3.connect(filling.path)) as connection, connection:
        connection.execute(sql, [value])


def test_each_step_is_sent_once(board: Board, observing: Callable[..., Observer], filling: Filling) -> None:
    """Also by an observer that takes the place of one that was killed."""
    filling.engine()
    filling.task("bio", "one", made=12)
    first = observing("trackio")
    first.look()
    first.look()
    assert board.steps() == list(range(1, len(board.steps()) + 1)) and len(board.steps()) >= 11
    observing("trackio").look(last=True)
    assert board.steps() == list(range(1, 13)), "the newest may still get metrics while it runs"
    scores = [(step, values["held_out/score"]) for _, step, values in board.logged if "held_out/score" in values]
    assert scores and scores == sorted(scores) and len(set(scores)) == len(scores)
    assert all(math.isfinite(value) for _, _, values in board.logged for value in values.values())
    assert len({run.id for run in board.begun}) == 1 and board.begun[-1].step >= 11 and not board.ended
    assert board.begun[0].name == "bio-one 1" and board.begun[0].project == "mine"


def test_a_tracker_that_is_down_gets_its_curve_later(
    board: Board, observing: Callable[..., Observer], filling: Filling, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[str] = []
    now = [100.0]
    monkeypatch.setattr(observer, "monotonic", lambda: now[0])
    board.down = True
    watching = observing("trackio", told=told)
    filling.engine()
    filling.task("bio", "one", state="done", made=3)
    for _ in range(3):
        watching.look()
    assert len(board.begun) == 1 and told == ["trackio: task 1 waits: ConnectionError: no route to the board"]
    now[0] += observer.FIRST_PAUSE
    board.down = False
    watching.look()
    assert board.steps() == [1, 2, 3] and board.ended == ["done"]
    observing("trackio").look(last=True)
    assert board.steps() == [1, 2, 3] and len(board.begun) == 2, "nothing is left to be sent"


@pytest.mark.parametrize(("home_to", "task_to", "sent"), [((), None, 0), ((), "trackio", 2), (("trackio",), "none", 0)])
def test_nothing_is_sent_unless_asked_for(
    board: Board,
    observing: Callable[..., Observer],
    filling: Filling,
    home_to: tuple[str, ...],
    task_to: str | None,
    sent: int,
) -> None:
    filling.engine()
    filling.task("bio", "one", made=2)
    own = json.dumps({"name": "one", "track": {"to": [task_to] if task_to else []}})
    change(filling, "UPDATE tasks SET config = ?", own)
    observing(*home_to).look(last=True)
    assert len(board.steps()) == sent


async def test_a_locked_database_ends_no_engine(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    """Trackers wait for it, and whoever runs them goes on."""
    monkeypatch.setattr(processes, "LOOK", 0.0)
    locked, seen = [True, True], asyncio.Event()

    def wanted(_: object) -> list[str]:
        if locked:
            locked.pop()
            raise StoreError("The database is locked.")
        loop.call_soon_threadsafe(seen.set)
        return []

    loop = asyncio.get_running_loop()
    monkeypatch.setattr(processes.Trackers, "_wanted", wanted)
    trackers = processes.Trackers(home, TrackSettings(), lambda kind, sentence, level: None)
    running = asyncio.ensure_future(trackers.run())
    await asyncio.wait_for(seen.wait(), 30)
    assert not running.done()
    running.cancel()
    await trackers.stop()


def test_tasks_that_ended_before_are_left_alone(
    board: Board, observing: Callable[..., Observer], filling: Filling
) -> None:
    filling.engine()
    filling.task("bio", "one", state="done", made=2)
    change(filling, "UPDATE tasks SET finished = ?", 1.0)
    observing("trackio").look(last=True)
    assert not board.begun
