"""Environments without an engine: first prompts, programs, and the room that these need."""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import asdict, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, TypeVar

from marlaas.engine.devices.limits import available_memory
from marlaas.engine.environments.conformance.check import try_out
from marlaas.engine.environments.conformance.finding import Finding, Level
from marlaas.engine.environments.dependencies import Interpreters
from marlaas.engine.environments.protocol import EnvironmentInfo, Opens
from marlaas.engine.environments.service import Peek, first_prompts, found_alone, serve_alone
from marlaas.engine.errors import MarlaasError
from marlaas.engine.gateway.api import open_gateways
from marlaas.engine.home.paths import BUNDLED_PLUGINS, Home
from marlaas.engine.home.settings import load_settings
from marlaas.engine.machine.plan import plan_of, wanted_of, with_sampler
from marlaas.engine.models.find import load_base
from marlaas.engine.models.memory import too_short
from marlaas.engine.queue.submission.taskfile import ToPlay, environments_of
from marlaas.engine.rollout.conversation import overfull
from marlaas.engine.rollout.programs import canned
from marlaas.engine.rollout.renderer import Renderer, Rendering, characters
from marlaas.engine.spec.automatic import BaseTraits, as_number, bounded
from marlaas.engine.spec.task import TaskSpec
from marlaas.engine.store.rows import EnvironmentRow
from marlaas.engine.store.submissions import Submission
from marlaas.engine.wire import Endpoints
from marlaas.plugins.messages import Answer, Ask, Reply

from ...text import environments as transcript
from ...text.format import excerpt
from ...text.terms import sentence

T = TypeVar("T")

PROMPTS = 3
CHARACTERS, LINES = 600, 8
"""Of a message that is shown."""
WARN = ("junk", "refused", "room")
"""Checks whose warnings are told, too."""
TRY_SECONDS = 10.0
"""Time to try out all environments; the engine checks the others."""


def _alone(home: Home, installs: bool, work: Callable[..., Coroutine[Any, Any, T]], *arguments: Any) -> T:
    """Run ``work(*arguments, folders, scratch, interpreters)`` in a temporary folder."""
    settings = load_settings(home).environments
    interpreters = Interpreters(home.venvs, settings if installs else replace(settings, allow="never"))
    with TemporaryDirectory(prefix="marlaas-peek-", ignore_cleanup_errors=True) as scratch:
        looking = work(*arguments, (BUNDLED_PLUGINS, home.plugins), Path(scratch), interpreters)
        with ThreadPoolExecutor(1) as thread:  # a notebook's own thread runs a loop already
            return thread.submit(asyncio.run, looking).result()


def peeked(
    home: Home,
    environment: str,
    config: Mapping[str, Any],
    count: int = PROMPTS,
    data: Mapping[str, Any] | None = None,
) -> Peek:
    """The first prompts of an environment, with ``data`` in place of its rows; blocks for a second.

    Raises ``ConfigError``.
    """

    async def looked(folders: Sequence[Path], scratch: Path, interpreters: Interpreters) -> Peek:
        async with open_gateways(scratch, _unheard) as gateways:
            opening = Programs(gateways).opens
            return await first_prompts(environment, config, count, folders, scratch, interpreters, data, opening)

    return _alone(home, True, looked)


def environments_alone(home: Home, names: Sequence[str]) -> list[EnvironmentRow]:
    """The environments that names may mean, without an engine; blocks for a second.

    Installs nothing: a plugin without its libraries has no version.
    """
    return [_row(info) for info in _alone(home, False, found_alone, names)]


def troubles(home: Home, submissions: Sequence[Submission], known: Sequence[EnvironmentRow]) -> dict[str, Finding]:
    """The worst finding of each of the user's environments.

    ``known`` were checked by an engine. Others are tried now, for a second; so are programs, for their room.
    """
    by_name = {name: row for row in known for name in (row.name.rpartition("/")[2], row.name)}
    played = {one.name: one for submission in reversed(submissions) for one in environments_of(submission)}
    found: dict[str, Finding] = {}
    until = time.monotonic() + TRY_SECONDS
    for name, one in played.items():
        row = by_name.get(name)
        if row is None or not row.version or not Path(row.path).is_relative_to(home.plugins):
            continue
        checked = row.checked is not None and all(finding.check != "program" for finding in row.findings)
        findings = row.findings if checked else _tried(home, row.name, one, until - time.monotonic())
        worst = next((each for each in findings if each.level == "error" or each.check in WARN), None)
        if worst and worst.level != "note":
            found[row.name] = worst
    return found


def _tried(home: Home, name: str, one: ToPlay, seconds: float) -> list[Finding]:
    async def tried(folders: Sequence[Path], scratch: Path, interpreters: Interpreters) -> list[Finding]:
        async with (
            asyncio.timeout(seconds),
            serve_alone(name, folders, scratch, interpreters) as (service, info),
            open_gateways(scratch, _unheard) as gateways,
        ):
            programs = Programs(gateways)
            with await service.bind(info.name, config=one.config, data=one.data) as lease:
                found = await try_out(lease, programs.serve)
            room = await find_room(home, programs.longest, info.context) if info.program else []
            return [*found, *programs.findings(), *room]

    try:
        return _alone(home, False, tried) if seconds > 0 else []
    except (MarlaasError, OSError):  # too slow, or not served: the engine reports what is wrong
        return []


def _unheard(_kind: str, _text: str, _level: str) -> None:
    """What ends a gateway is seen in the episodes."""


def _row(info: EnvironmentInfo) -> EnvironmentRow:
    failure = info.failure
    return EnvironmentRow(
        name=info.name,
        version=info.version,
        state=info.state,
        parameters=tuple(asdict(parameter) for parameter in info.parameters),
        description=info.description,
        message=failure.message if failure else "",
        file=failure.file if failure else "",
        line=failure.line if failure else 0,
        path=info.path,
        updated=time.time(),
        agents=info.agents,
        rows=info.rows,
    )


def prompt_lines(ask: Ask) -> list[str]:
    """Tools and messages of an ask as safe lines, long ones cut."""
    rows = transcript.tools(ask.tools)
    for said in ask.messages:
        rows += transcript.message(replace(said, content=excerpt(said.content, CHARACTERS, LINES)))
    return rows


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
                self.longest = max(self.longest or ask, ask, key=lambda each: characters(each.messages, each.tools))
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
