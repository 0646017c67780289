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
from marlaas.engine.models.memory import too_short
from marlaas.engine.rollout.conversation import overfull
from marlaas.engine.rollout.programs import canned
from marlaas.engine.rollout.renderer import Renderer, Rendering, characters
from marlaas.engine.spec.automatic import BaseTraits, as_number, bounded
from marlaas.engine.spec.task import TaskSpec
from marlaas.engine.wire import Endpoints
from marlaas.plugins.messages import Answer, Ask, Reply

from ...text.terms import sentence


class Programs:
    """Gives the programs of checks an address, and keeps the longest ask that begins a conversation."""

    def __init__(self, endpoints: Endpoints) -> None:
        self.longest: Ask | None = None
        self._endpoints = endpoints
        self._rejected = ""

    @contextmanager
    def serve(self, answer: Answer) -> Iterator[Answer]:
        """A ``conformance.subject.Serve``."""

        begun: set[tuple[str, int]] = set()

        async def answering(ask: Ask) -> Reply:
            if ask.fork is None and (ask.agent, ask.branch) not in begun:
                begun.add((ask.agent, ask.branch))
                self.longest = max(self.longest or ask, ask, key=_length)
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


def _length(ask: Ask) -> int:
    return characters(ask.messages, ask.tools)


async def _silence(_ask: Ask) -> Reply:
    return await asyncio.Future()


async def find_room(home: Home, ask: Ask | None, needed: int) -> list[Finding]:
    """Whether the home's base has room for a first prompt and a reply.

    ``needed``: the context that the environment asks for, or 0.
    """
    if ask is None:
        return []
    try:
        settings = load_settings(home)
        base = load_base(settings.base)
        wanted = wanted_of(base, with_sampler(settings, base), trains=True)
        context = plan_of(base, settings, available_memory(settings.resources.memory)).context
        renderer = Renderer(base.path)
        if says := too_short(needed, context, wanted):
            return [Finding("room", "error" if settings.rollout.context else "warning", sentence(says))]
        tokens = len((await Rendering(renderer).open(ask, None, sys.maxsize)).tokens)
    except (MarlaasError, ValueError) as error:
        return [Finding("room", "note", f"The tokens of its first prompt cannot be counted: {error}")]
    traits = BaseTraits(base.config.hidden_size, base.config.context_length, renderer.thinks, renderer.switch)
    reply = ask.max_tokens or as_number(bounded(TaskSpec("", "", ""), traits).sampling.max_tokens)
    if tokens >= context:
        return [Finding("room", "error", sentence(overfull(tokens, context, wanted, reply).message))]
    level: Level = "note" if tokens + reply <= context else "warning"
    left = f"{context - tokens:,} of {context:,} are left for replies"
    return [Finding("room", level, f"Its first prompt has {tokens:,} tokens of this home's base; {left}.")]
