"""Workers on llama.cpp wait while the set-up still compiles it; others begin at once."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

from ..devices import LlamaBuild, llama_build
from .worker_specs import LLAMA, WorkerSpec

POLL = 0.5
"""Seconds between two looks."""


async def until_compiled(
    specs: Sequence[WorkerSpec],
    tell: Callable[[str], None],
    look: Callable[[], LlamaBuild | None] = llama_build,
) -> None:
    """Return once no worker of ``specs`` needs what is still being compiled; ``tell`` hears once of a wait.

    Where it could not be compiled, the worker says why when it is started.
    """
    said = False
    while any(spec.factory == LLAMA and not spec.node for spec in specs):
        build = look()
        if build is None or build.state != "compiling":
            return
        if not said:
            tell("The sampler waits for llama.cpp, which is still being compiled.")
            said = True
        await asyncio.sleep(POLL)


def loading(specs: Sequence[WorkerSpec]) -> str:
    """What the start of these workers takes its time for, in words for people."""
    converts = any(spec.factory == LLAMA for spec in specs)
    return "The workers load the base." + (" For llama.cpp it is converted first, once." if converts else "")
