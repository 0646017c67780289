"""A conversation with versions of an adapter: its messages and sampler."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory

from marlaas.engine.errors import MarlaasError, WorkerDied
from marlaas.engine.home.paths import Home
from marlaas.engine.home.settings import load_settings
from marlaas.engine.machine.lone_sampler import BARE, LonePlan, LoneSampler, open_lone_sampler, plan_alone
from marlaas.engine.queue.submission.references import choose_at
from marlaas.engine.rollout.talk import Manner, Speech, Talk
from marlaas.engine.spec.automatic import as_number, for_talk
from marlaas.engine.spec.task import parse
from marlaas.engine.store.queries.reader import Reader
from marlaas.engine.store.rows import VersionRow

from ...operations.commands import owner, reference
from ...text.format import line, size

# Replies and sampler states go to ``tell``, called in this thread. The sampler starts with the first message and ends
# with the thread, or when idle; the next one rereads the conversation.

IDLE = 600.0
"""Idle seconds until the sampler ends: training may need its memory."""


@dataclass(frozen=True)
class SamplerNotice:
    """The sampler's state, in a sentence."""

    text: str
    bad: bool = False
    under_way: bool = False
    """True: in progress."""


@dataclass(frozen=True)
class PartialReply:
    """A side's answer so far or complete; ``problem`` if it failed."""

    side: int
    speech: Speech
    problem: str = ""


@dataclass(frozen=True)
class TurnOver:
    """All sides have answered, or none could: then the message counts as never sent."""

    said: bool


Event = SamplerNotice | PartialReply | TurnOver


@dataclass(frozen=True)
class Message:
    """A message to all sides."""

    words: str
    manner: Manner
    system: str = ""


class ChatThread:
    """One conversation per side. ``run`` is the thread; call the rest from any."""

    def __init__(
        self, home: Home, sides: Sequence[Side], place: str, tell: Callable[[Event], None], idle: float = IDLE
    ) -> None:
        """``place`` seeds the noise, the same on all sides."""
        self._home = home
        self._sides = sides
        self._place = place
        self._tell = tell
        self._idle = idle
        self._talks: list[Talk] = []
        self._loop = asyncio.new_event_loop()
        self._main: asyncio.Task[None] | None = None
        self._turn: asyncio.Future[list[Speech | BaseException]] | None = None
        self._said: asyncio.Queue[Message] = asyncio.Queue()
        self._closed = threading.Event()
        self._leaving = False
        """Whether a sampler is being ended; an interruption would leave its process behind."""

    def run(self) -> None:
        """Serve until ``close``; the sampler's process has then ended."""
        with suppress(asyncio.CancelledError), asyncio.Runner(loop_factory=lambda: self._loop) as runner:
            runner.run(self._run())

    def say(self, message: Message) -> None:
        """One message at a time."""
        self._call(lambda: self._said.put_nowait(message))

    def cancel(self) -> None:
        self._call(lambda: self._turn.cancel() if self._turn else None)

    def close(self) -> None:
        self._closed.set()
        self._call(lambda: self._main.cancel() if self._main and not self._leaving else None)

    def _call(self, act: Callable[[], object]) -> None:
        with suppress(RuntimeError):  # the thread has ended
            self._loop.call_soon_threadsafe(act)

    async def _run(self) -> None:
        self._main = asyncio.current_task()
        if not self._closed.is_set():
            await self._trying(self._look())
        while not self._closed.is_set():
            message = await self._said.get()
            if not await self._trying(self._serve(message)):
                self._tell(TurnOver(said=False))

    async def _trying(self, work: Coroutine[object, object, None]) -> bool:
        """Shows an error and returns False; the conversation may continue."""
        try:
            await work
        except MarlaasError as error:
            self._tell(SamplerNotice(str(error), bad=True))
        except (OSError, ValueError) as error:
            self._tell(SamplerNotice(f"{type(error).__name__}: {error}", bad=True))
        else:
            return True
        return False

    async def _look(self) -> None:
        plan = self._planned()
        self._tell(SamplerNotice(f"{cost_of(plan)} Your first message starts it."))

    def _planned(self) -> LonePlan:
        self._tell(SamplerNotice("Looking at the base …", under_way=True))
        return plan_alone(load_settings(self._home))

    async def _serve(self, message: Message) -> None:
        plan = self._planned()
        self._tell(SamplerNotice(f"{cost_of(plan)} Starting it …", under_way=True))
        try:
            async with talking(self._home, plan, self._sides) as lone:
                try:
                    await self._converse(lone, message)
                finally:
                    self._leaving = True
        finally:
            self._leaving = False
        minutes = self._idle / 60
        self._tell(SamplerNotice(f"The sampler ended after {minutes:.0f} idle minutes; a message starts it again."))

    async def _converse(self, lone: LoneSampler, message: Message) -> None:
        lone.rollout.check_thinking(message.manner.thinking)
        for talk in self._talks:
            talk.move(lone.sampler)
        self._talks = self._talks or [side.talk(lone, self._place) for side in self._sides]
        while True:
            self._tell(SamplerNotice("They answer …" if len(self._sides) > 1 else "It answers …", under_way=True))
            await self._answer(message)
            self._tell(SamplerNotice(""))
            try:
                message = await asyncio.wait_for(self._said.get(), self._idle)
            except TimeoutError:
                return

    async def _answer(self, message: Message) -> None:
        def tell_reply(side: int) -> Callable[[Speech], None]:
            return lambda speech: self._tell(PartialReply(side, replace(speech, ended="")))

        self._turn = asyncio.gather(
            *(
                talk.say(message.words, message.manner, tell_reply(place), message.system)
                for place, talk in enumerate(self._talks)
            ),
            return_exceptions=True,
        )
        try:
            answers = await self._turn
        except asyncio.CancelledError:
            if self._closed.is_set():
                raise
            self._tell(TurnOver(said=False))
            return
        finally:
            self._turn = None
        for place, answer in enumerate(answers):
            if isinstance(answer, Speech):
                self._tell(PartialReply(place, answer))
            elif isinstance(answer, Exception):
                self._tell(PartialReply(place, Speech(ended="stop"), str(answer)))
        for answer in answers:
            if isinstance(answer, WorkerDied):  # the next message starts another one
                raise answer
        self._tell(TurnOver(said=any(isinstance(answer, Speech) for answer in answers)))


ROOMY = Manner()


@dataclass(frozen=True)
class Side:
    """A version, or the base without an adapter."""

    version: VersionRow | None = None

    @property
    def name(self) -> str:
        return self.version.name if self.version else BARE

    @property
    def label(self) -> str:
        """Short: 17@12, 17/player@12, or base."""
        return reference(self.version) if self.version else BARE

    @property
    def title(self) -> str:
        if self.version is None:
            return "the base without an adapter"
        label = f", {self.version.label}" if self.version.label else ""
        return (
            f"version {self.version.number} of task {owner(self.version)} ({line(self.version.task_name, 40)}{label})"
        )

    def talk(self, lone: LoneSampler, place: str) -> Talk:
        """A conversation; the same ``place`` gives the same noise on all sides."""
        return lone.talk(self.name, self.version.number if self.version else 0, place)


def side_of(versions: list[VersionRow], said: str) -> Side:
    """``base``, or as ``choose_at``. Raises ``MarlaasError``."""
    return Side() if said == BARE else Side(choose_at(versions, said))


def manner_of(reader: Reader, side: Side) -> Manner:
    """Temperature, turn length and thinking of its training."""
    if side.version is None:
        return ROOMY
    sampling = for_talk(parse(reader.task_config(side.version.task), f"task {side.version.task}").sampling)
    return Manner(sampling.temperature, as_number(sampling.max_tokens), sampling.thinking)


def cost_of(plan: LonePlan) -> str:
    """A sampler's cost, in a sentence."""
    return f"A sampler of its own takes about {size(plan.memory.total)} of the {size(plan.free)} that are free."


@asynccontextmanager
async def talking(home: Home, plan: LonePlan, sides: Sequence[Side]) -> AsyncIterator[LoneSampler]:
    """A sampler of all sides until the block ends.

    Raises ``AdapterError`` for a missing or damaged state file, and errors of base and worker.
    """
    with TemporaryDirectory(prefix="marlaas-chat-", ignore_cleanup_errors=True) as scratch:
        async with open_lone_sampler(home.create(), plan) as lone:
            for side in sides:
                if side.version is None:
                    await lone.load_bare(Path(scratch))
                else:
                    await lone.load(side.name, home.file(side.version.path), side.version.checksum)
            yield lone
