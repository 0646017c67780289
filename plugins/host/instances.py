"""The instances of environments in the class form: one in this process for each, set up before its first episode.

A set-up has its own time limit, separate from the waiting episodes; a failed one is repeated with the next episode.
"""

from __future__ import annotations

import asyncio
import functools
import inspect
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from types import TracebackType
from typing import Any

from ..environment import Environment
from .meter import Clock, Usage, charged
from .threads import Stopped, ended, in_thread

_GRACE = 1.0
_CLOSING = 2.0


class Late(Exception):
    """A set-up took longer than the environment's time limit."""

    def __init__(self, message: str = "", overloaded: bool = False) -> None:
        """``overloaded``: True if it was the wall limit, so that the set-up may not be to blame."""
        super().__init__(message)
        self.overloaded = overloaded


@dataclass(frozen=True)
class _Made:
    """An instance that is set up, or the error and its traceback."""

    instance: Any = None
    error: BaseException | None = None
    trace: TracebackType | None = None


class Instances:
    """The instances of one process."""

    def __init__(self) -> None:
        self._making: dict[str, asyncio.Task[_Made]] = {}

    async def player(self, environment: Environment) -> Callable[..., Any]:
        """The callable for an episode. Raises what the set-up raised, or ``Late``."""
        making = self._making.get(environment.name)
        if making is None:
            making = self._making[environment.name] = asyncio.create_task(_timed(environment))
        made = await asyncio.shield(making)
        if made.error is not None:
            if self._making.get(environment.name) is making:
                del self._making[environment.name]
            raise made.error.with_traceback(made.trace)
        return functools.partial(environment.function, made.instance)

    async def close(self) -> None:
        """Call ``close`` of every instance that has one; errors are printed to the plugin's log."""
        made = [making.result() for making in self._making.values() if making.done()]
        closing = [
            asyncio.create_task(_closed(one.instance.close))
            for one in made
            if one.error is None and hasattr(one.instance, "close")
        ]
        if closing:
            await asyncio.wait(closing, timeout=_CLOSING)


async def _timed(environment: Environment) -> _Made:
    loop, usage = asyncio.get_running_loop(), Usage()
    late: asyncio.Future[bool] = loop.create_future()  # True: the wall limit
    clock = usage.limit = Clock(loop, environment.timeout, late.set_result, usage)
    making = charged(loop, _made(environment), usage)
    await asyncio.wait((making, late), return_when=asyncio.FIRST_COMPLETED)
    clock.stop()
    overloaded = late.done() and late.result()
    if making.done():
        made: _Made = making.result()
        if not isinstance(made.error, Stopped):
            return made
        overloaded = overloaded or made.error.args == ("wall",)
    making.cancel()
    await asyncio.wait((making,), timeout=_GRACE)
    ended(usage)
    stopped_at = making.result().trace if making.done() else None
    message = f"the set-up of {environment.name} took longer than {environment.timeout:g} s"
    return _Made(None, Late(message, overloaded), stopped_at)


async def _made(environment: Environment) -> _Made:
    """Set an instance up; an error becomes part of the result, because a SystemExit would end the loop."""
    try:
        if environment.form is None:
            raise LookupError(f"{environment.name} is a function, there is nothing to set up")
        instance = await in_thread(environment.form)
        if hasattr(instance, "setup"):
            await _done(instance.setup)
        return _Made(instance)
    except BaseException as error:
        return _Made(None, error, error.__traceback__)


async def _closed(close: Callable[[], Any]) -> None:
    try:
        await _done(close)
    except BaseException:  # the process ends either way
        traceback.print_exc()


async def _done(method: Callable[[], Any]) -> Any:
    return await (method() if inspect.iscoroutinefunction(method) else in_thread(method))
