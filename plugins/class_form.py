"""The class form of an environment: what a class must offer to be played, for set-up that costs more than an episode.

    @env
    class Anagrams:
        def setup(self): ...                                # once in a process, before its first episode
        async def play(self, ep, letters: int = 5): ...     # what an environment function is elsewhere
        def close(self): ...                                # once, when the process ends in good order

``setup`` and ``close`` may be left out; each of the three may be ``async`` or a plain ``def``. One instance plays all
episodes of the process, many at the same time: what it holds is there to be read.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any


def play_of(form: type) -> Callable[..., Any]:
    """The method that plays an episode.

    Raises ``TypeError`` if there is none, or where the class cannot be made, set up or closed without arguments.
    """
    play = getattr(form, "play", None)
    if not inspect.isfunction(play):
        raise TypeError(f"the class {form.__name__} needs a method that plays: async def play(self, ep, …)")
    _check(form, f"the class {form.__name__} is made without arguments: what it needs, it gets in setup(self)")
    for name in ("setup", "close"):
        method = getattr(form, name, None)
        if method is not None:
            _check(method, f"{form.__name__}.{name} takes nothing but self: def {name}(self)", form)
    return play


def _check(call: Callable[..., Any], message: str, *given: object) -> None:
    try:
        inspect.signature(call).bind(*given)
    except TypeError:
        raise TypeError(message) from None
