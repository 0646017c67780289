"""Programs of environments without an engine: their addresses, their first prompts, and the room that they need."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from marlaas.engine.devices.limits import available_memory
from marlaas.engine.environments.conformance.finding import Finding, Level
from marlaas.engine.environments.protocol import Opens
from marlaas.engine.errors import MarlaasError
from marlaas.engine.home.paths import Home
from marlaas.engine.home.settings import load_settings
from marlaas.engine.machine.plan import plan_of, wanted_of, with_sampler
from marlaas.engine.models.find import load_base
from marlaas.engine.rollout.conversation import overfull
from marlaas.engine.rollout.programs import canned
from marlaas.engine.rollout.renderer import Renderer, Rendering
from marlaas.engine.spec.automatic import BaseTraits, as_number, bounded
from marlaas.engine.spec.task import TaskSpec
from marlaas.engine.wire import Endpoints
from marlaas.plugins.messages import Answer, Ask, Reply


class Programs:
    """Gives the programs of checks an address, and keeps the first ask."""

    def __init__(self, endpoints: Endpoints) -> None:
        self.first: Ask | None = None
        self._endpoints = endpoints
        self._rejected = ""

    @contextmanager
    def serve(self, answer: Answer) -> Iterator[Answer]:
        """A ``conformance.subject.Serve``."""

        async def answering(ask: Ask) -> Reply:
            self.first = self.first or ask
            return await answer(ask)

        with canned(self._endpoints, answering) as served:
            yield served
            self._rejected = served.rejected() or self._rejected

    @contextmanager
    def opens(self) -> Iterator[Opens]:
        """For one first ask, which gets no reply."""
        with canned(self._endpoints, _silence) as served:
            yield served.endpoint

    def findings(self) -> Iterator[Finding]:
        """The last refusal."""
        if self._rejected:
            yield Finding("refused", "warning", f"Its last refused request: {self._rejected}")


async def _silence(_ask: Ask) -> Reply:
    return await asyncio.Future()


async def find_room(home: Home, ask: Ask | None) -> list[Finding]:
    """Whether the home's base has room for a first prompt and a reply."""
    if ask is None:
        return []
    try:
        settings = load_settings(home)
        base = load_base(settings.base)
        wanted = wanted_of(base, with_sampler(settings, base), trains=True)
        context = plan_of(base, settings, available_memory(settings.resources.memory)).context
        renderer = Renderer(base.path)
        tokens = len((await Rendering(renderer).open(ask, None, sys.maxsize)).tokens)
    except (MarlaasError, ValueError) as error:
        return [Finding("room", "note", f"The tokens of its first prompt cannot be counted: {error}")]
    traits = BaseTraits(base.config.hidden_size, base.config.context_length, renderer.thinks, renderer.switch)
    reply = ask.max_tokens or as_number(bounded(TaskSpec("", "", ""), traits).sampling.max_tokens)
    if tokens >= context:
        message = overfull(tokens, context, wanted, reply).message
        return [Finding("room", "error", f"{message[0].upper()}{message[1:]}.")]
    level: Level = "note" if tokens + reply <= context else "warning"
    left = f"{context - tokens:,} of {context:,} are left for replies"
    return [Finding("room", level, f"Its first prompt has {tokens:,} tokens of this home's base; {left}.")]
