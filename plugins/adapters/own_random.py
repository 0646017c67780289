"""Gives every episode its own ``random``, although libraries share one per process.

Many environments draw from the global ``random`` (or numpy's), and some seed it. Alternating episodes would change each
other's outcome. So the global state is exchanged whenever an episode's coroutine continues, and restored whenever it
waits. A library's own threads and tasks are out of reach.
"""

from __future__ import annotations

import functools
import random
import sys
import types
from collections.abc import Callable, Coroutine, Generator
from typing import Any, TypeVar

from ..episode import run_tools_here

T = TypeVar("T")
Play = Callable[..., Coroutine[Any, Any, T]]


class OwnRandom:
    """A state of the global generators, active inside ``with``."""

    def __init__(self, seed: int) -> None:
        self._state = random.Random(seed).getstate()
        self._numpy: Any = getattr(sys.modules.get("numpy"), "random", None)
        self._numpy_state = None if self._numpy is None else self._numpy.RandomState(seed % (1 << 32)).get_state()

    def __enter__(self) -> None:
        self._exchange()

    def __exit__(self, *_: object) -> None:
        self._exchange()

    def _exchange(self) -> None:
        outside = random.getstate()
        random.setstate(self._state)
        self._state = outside
        if self._numpy is not None:
            numpy_outside = self._numpy.get_state()
            self._numpy.set_state(self._numpy_state)
            self._numpy_state = numpy_outside


def own_random(play: Play[T]) -> Play[T]:
    """Give every episode of a play function its own global generators, seeded from the instance."""

    @functools.wraps(play)
    async def playing(ep: Any, **options: Any) -> T:
        run_tools_here(ep)  # elsewhere they would draw from another episode's generators
        return await swapped(play(ep, **options), OwnRandom(ep.rng.getrandbits(32)))

    return playing


@types.coroutine
def swapped(coroutine: Coroutine[Any, Any, T], own: OwnRandom) -> Generator[Any, Any, T]:
    """Run a coroutine with ``own`` as the global state, only while it runs."""
    go_on: Callable[[Any], Any] = coroutine.send
    given: Any = None
    while True:
        try:
            with own:
                awaited = go_on(given)
        except StopIteration as done:
            result: T = done.value
            return result
        try:
            given = yield awaited
            go_on = coroutine.send
        except GeneratorExit:
            coroutine.close()
            raise
        except BaseException as error:  # a cancellation, above all: it belongs to the coroutine
            given, go_on = error, coroutine.throw
