"""What a rough estimate rests on: a few episodes of an environment, and how fast the home's base is on this machine.

Both are measured when they are asked for: episodes in a second or two, without a model; a small base once, in some
seconds, with real workers. A large one is measured by ``marlaas base check`` alone. Whatever goes wrong leaves nothing.
"""

from __future__ import annotations

import asyncio
import json
import threading
import time
from collections.abc import Callable, Coroutine, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import aclosing
from pathlib import Path
from statistics import fmean
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, TypeVar

from marlaas.engine.base import BaseModel, parameters
from marlaas.engine.daemon import control
from marlaas.engine.devices import available_memory, own_cores
from marlaas.engine.errors import MarlaasError
from marlaas.engine.fleet import Copy, is_small, plan_of, with_sampler
from marlaas.engine.home import BUNDLED_PLUGINS, Home, Settings, load_settings
from marlaas.engine.submission import BaseSpeed, EpisodeShape
from marlaas.plugins.messages import Ask

if TYPE_CHECKING:
    from marlaas.engine.rollout import Renderer

T = TypeVar("T")

EPISODES = 8
"""Episodes that are played."""
FRESH = 60.0
"""Seconds for which what was played is remembered: a form asks again with every letter, an author edits the file."""
CHARACTERS = 4
"""Of a token, where a base's template refuses to count."""
BUSY = 3600.0
"""Seconds for which a speed counts that was measured beside an engine, which takes its part of the machine."""
ROOM = 3 << 30
"""Bytes of free memory with which two further workers are started."""
_MEASURING = "Measuring how fast this base is here, once; some seconds."

_lock = threading.Lock()
_shapes: dict[str, tuple[float, EpisodeShape | None]] = {}
_speeds: dict[str, BaseSpeed | None] = {}
"""Of this process: a home that is not made yet keeps nothing."""


def episode_shape(
    home: Home, base: BaseModel, environment: str, config: Mapping[str, Any], data: Mapping[str, Any] | None
) -> EpisodeShape | None:
    """What episodes of an environment are like, played now or a moment ago; None where none can be played."""
    key = json.dumps([str(home.root), base.fingerprint, environment, config, data], default=str, sort_keys=True)
    with _lock:
        then, shape = _shapes.get(key, (-FRESH, None))
        if time.monotonic() - then > FRESH:
            try:
                shape = _played(home, base, environment, config, data)
            except (MarlaasError, OSError, ValueError):
                shape = None
            _shapes[key] = (time.monotonic(), shape)
        return shape


def _played(
    home: Home, base: BaseModel, environment: str, config: Mapping[str, Any], data: Mapping[str, Any] | None
) -> EpisodeShape | None:
    from marlaas.engine.environments import Interpreters, play_blind
    from marlaas.engine.rollout import Renderer

    interpreters = Interpreters(home.venvs, load_settings(home).environments)
    folders = (BUNDLED_PLUGINS, home.plugins)
    with TemporaryDirectory(prefix="marlaas-probe-", ignore_cleanup_errors=True) as scratch:
        blind = play_blind(environment, config, EPISODES, folders, Path(scratch), interpreters, data)
        episodes = _run(blind)
    if not episodes:
        return None
    renderer = Renderer(base.path)
    tokens = [sum(_tokens(renderer, ask) for ask in one.asks) for one in episodes]
    return EpisodeShape(
        len(episodes),
        fmean(len(one.asks) for one in episodes),
        fmean(tokens),
        fmean(one.seconds for one in episodes),
    )


def _tokens(renderer: Renderer, ask: Ask) -> int:
    """Tokens of what an ask adds to its conversation."""
    try:
        return len(renderer.open(ask.messages, ask.tools))
    except (MarlaasError, ValueError):  # no conversation begins so
        return sum(len(said.content) for said in ask.messages) // CHARACTERS


def _run(work: Coroutine[Any, Any, T]) -> T:
    """Run it to its end in a thread of its own: whoever asks may have an event loop already."""
    with ThreadPoolExecutor(1) as thread:
        return thread.submit(asyncio.run, work).result()


def base_speed(
    home: Home, base: BaseModel, settings: Settings, say: Callable[[str], None] | None = None
) -> BaseSpeed | None:
    """How fast the base is here, as measured before, or now where it is small; None where that is not known."""
    from marlaas.engine.run import read_speed, write_speed

    settings = with_sampler(settings, base)
    key = key_of(base, settings)
    with _lock:
        known = read_speed(home.speeds, key) or _speeds.get(key)
        if known is not None or key in _speeds or not _quick(base, settings):
            return known
        if say is not None:
            say(_MEASURING)
        try:
            speed = _run(_measured(base, settings))
        except (MarlaasError, OSError, ValueError):
            speed = None
        _speeds[key] = speed
        if speed is not None and home.root.is_dir():
            busy = control.alive(home)
            write_speed(home.speeds, key, speed, time.time() + BUSY if busy else None)
        return speed


def key_of(base: BaseModel, settings: Settings) -> str:
    """The key of a base's speed; ``settings`` name their sampler."""
    from marlaas.engine.run import speed_key

    return speed_key(base.fingerprint, settings.rollout.sampler, len(own_cores(settings.resources.cores)))


def _quick(base: BaseModel, settings: Settings) -> bool:
    """Whether it is measured in some seconds: nothing is converted, a step is short, and there is room for workers."""
    small = settings.rollout.sampler == "torch" and is_small(parameters(base))
    return small and available_memory(settings.resources.memory) > ROOM


async def _measured(base: BaseModel, settings: Settings) -> BaseSpeed | None:
    """Run a step of the default task, in a home that is removed afterwards."""
    from marlaas.engine.rollout import Renderer
    from marlaas.engine.run import speed_of, try_base

    memory = plan_of(base, settings, available_memory(settings.resources.memory))
    with TemporaryDirectory(prefix="marlaas-speed-", ignore_cleanup_errors=True) as folder:
        home = Home(Path(folder, "home")).create()
        plans = {Copy("torch", memory.weights): memory}
        async with aclosing(try_base(base, home, settings, Renderer(base.path), plans)) as found:
            async for one in found:
                return speed_of(one.trial)
    return None
