"""When an application under test is at rest: known from what it has left to do, never from how busy the processor is.

Textual's pilot takes an application for idle once its process has computed little for a fiftieth of a second. On a
busy machine that is so in the middle of its work, and on an idle one each key waits for a tenth of a second. An event
loop knows better: something is ready, or a thread works for it, or a timer is due soon, or something is on its way to
another place of the screen, or nothing happens by itself.
"""

from __future__ import annotations

import asyncio
from asyncio import BaseEventLoop
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from typing import Any, ParamSpec, TypeVar, cast
from unittest.mock import patch

from textual.app import App
from textual.screen import Screen

P = ParamSpec("P")
Answer = TypeVar("Answer")

SOON = 0.1
"""Seconds. What a timer does once, so soon, is a part of what set it off: the queue's look at the task on which the
cursor rests."""
ROUNDS = 100
"""Redraws to make at most: a screen that changes with each of them is never through."""


class Threads(ThreadPoolExecutor):
    """The threads of an event loop, which are known while they work."""

    def __init__(self) -> None:
        super().__init__()
        self.working: set[Future[object]] = set()

    def submit(self, work: Callable[P, Answer], /, *args: P.args, **options: P.kwargs) -> Future[Answer]:
        """As any executor does."""
        future = super().submit(work, *args, **options)
        known = cast("Future[object]", future)
        self.working.add(known)
        known.add_done_callback(self.working.discard)
        return future


def _loop() -> BaseEventLoop:
    return cast(BaseEventLoop, asyncio.get_running_loop())


def known_threads() -> Threads:
    """Those of this event loop."""
    loop = _loop()
    threads = loop._default_executor  # type: ignore[attr-defined]
    if not isinstance(threads, Threads):
        threads = Threads()
        loop.set_default_executor(threads)
    return threads


async def idle(app: App[Any], *least_and_most: float) -> None:
    """Until nothing is ready, moves, or is due soon, and what changed is laid out, however long that takes."""
    loop = _loop()
    for _ in range(ROUNDS):
        await asyncio.sleep(0)
        while loop._ready:  # type: ignore[attr-defined]
            await asyncio.sleep(0)
        if timers := _due_soon(app):
            await asyncio.wait(timers)
        elif app.animator._animations:
            app.animator()  # without animations, what scrolls is there with the next frame: it need not wait for it
            if app.animator._animations:
                await app.animator.wait_for_idle()
        elif app.screen_stack and (screen := app.screen).is_running and _has_changed(screen):
            screen._on_timer_update()
        else:
            return


def _due_soon(app: App[Any]) -> list[asyncio.Task[Any]]:
    """What waits for its time, and is no beat that goes on for ever."""
    nodes = [app, *(node for screen in app.screen_stack for node in screen.walk_children(with_self=True))]
    timers = [timer for node in nodes for timer in node._timers if timer._repeat == 0 and timer._interval <= SOON]
    tasks = (timer._task for timer in timers if timer._active.is_set())
    return [task for task in tasks if task is not None and not task.done()]


def _has_changed(screen: Screen[Any]) -> bool:
    return bool(
        screen._layout_required
        or screen._scroll_required
        or screen._repaint_required
        or screen._recompose_required
        or screen._dirty_widgets
        or screen._callbacks
    )


async def rest(app: App[Any]) -> None:
    """Until it is idle and no worker and no thread of it is under way, not even one that nobody waits for any more."""
    threads = known_threads()
    while True:
        await idle(app)
        tasks = {worker._task for worker in app.workers if worker._task is not None and not worker._task.done()}
        busy = [*tasks, *(asyncio.wrap_future(future) for future in list(threads.working))]
        if not busy:
            return
        await asyncio.gather(*busy, return_exceptions=True)  # whoever started them looks at what they raised


@contextmanager
def pilots_know_rest(app: App[Any]) -> Iterator[None]:
    """Within it, a pilot waits until this application is ``idle``."""
    known = partial(idle, app)
    with patch("textual.app.wait_for_idle", known), patch("textual.pilot.wait_for_idle", known):
        yield


@contextmanager
def drawing_put_off() -> Iterator[Callable[[], None]]:
    """Within it, a screen in sight is drawn into its terminal when it is told to, and not with each change on the way.

    Each drawing makes up a third of what an application of a test computes.
    """
    draw = Screen._compositor_refresh
    late: list[Screen[Any]] = []

    def put_off(screen: Screen[Any]) -> None:
        if screen is not screen.app.screen:
            draw(screen)
            return
        late[:] = [screen]
        screen._dirty_widgets.clear()
        screen.app._update_mouse_over(screen)

    def draw_now() -> None:
        while late:
            screen = late.pop()
            if screen.is_running and screen is screen.app.screen:
                draw(screen)

    with patch.object(Screen, "_compositor_refresh", put_off):
        yield draw_now
