"""One process of one plugin version, and its episodes."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol, cast

from marlaas.plugins.host.channel import Channel, Record
from marlaas.plugins.messages import MOST_ASKS, MOST_VALUES, Answer, Ask, Endpoint, Reply
from marlaas.plugins.rewards import Transcript
from marlaas.plugins.sandbox_supervisor import wall_limit

from ...errors import EnvironmentFailure, MarlaasError
from ...trajectories import EpisodeStatus, Failure
from ..protocol import Answering, DataFacts, EpisodeOutcome, EpisodeSpec, Ranking, Threads, Unscored, endpoint_of
from .launch import Folders, Launched, judged, launch
from .wire import (
    Asked,
    Broken,
    Described,
    Ended,
    Facts,
    Hello,
    Opening,
    Outcome,
    Ranked,
    Settled,
    WireError,
    decode_body,
    encode_body,
    encode_endpoint,
    encode_rank,
    encode_reply,
    encode_score,
    parse_message,
)


@dataclass
class Play:
    """An episode in progress, or another request."""

    answer: Answer | None
    outcomes: tuple[type, ...]
    ended: asyncio.Future[Outcome]
    began: float
    asks: set[asyncio.Task[None]] = field(default_factory=set)
    final: set[str] = field(default_factory=set)


@dataclass(frozen=True)
class EpisodeListener:
    """Implements ``protocol.Listener`` for an episode in progress."""

    play: Play
    ask: Answer
    opening: Opening
    send: Callable[[Record], None]

    @property
    def agents(self) -> tuple[str, ...]:
        return self.opening.agents

    @property
    def train(self) -> Threads:
        return self.opening.train

    async def answer(self, ask: Ask) -> Reply:
        return await self.ask(ask)

    def calls(self, agent: str, under_way: int, replies: int) -> None:
        if not self.play.ended.done():
            record = {"op": "calls", "episode": self.opening.episode, "agent": agent}
            self.send(record | {"under_way": under_way, "replies": replies})

    def failed(self, error: BaseException) -> None:
        if not self.play.ended.done():
            self.play.ended.set_exception(error)


# Each episode gets exactly one outcome. A death is reported once to the owner; nothing restarts here.

BEAT = 1.0
"""Seconds between two questions."""
INTERRUPTED_AFTER = 6.0
"""Processor seconds of silence, so that ``meter.HELD`` has passed for the process, too."""
_MOST_VALUES = 3 * MOST_VALUES
"""An author's lists count twice, as entries and as lists; the protocol adds some."""
READ_RATE = 32 << 20
"""Bytes a second: more prompts than any sampler takes, parsed in less than 0.1 s."""
UNSTOPPABLE = "an episode whose time was up went on computing, and did not stop when it was interrupted"
HUNG = "compiled code of the plugin let nothing else run in its process"
TOO_LONG = "importing the plugin took longer than {:g} s"
STILL = "its process did not answer for minutes"
_SOONEST = 0.05
_CLOSING = 3.0


class BrokenPlugin(EnvironmentFailure):
    """The plugin cannot be imported, or its process ended during the import."""

    def __init__(self, failure: Failure, died: bool = False) -> None:
        super().__init__(failure.message)
        self.failure = failure
        self.died = died
        """True if the process ended without a message: another try may succeed."""


class Owner(Protocol):
    """Gets the events of its children."""

    def died(self, child: Child, failure: Failure) -> None:
        """Called once, but not after ``kill``."""

    def idled(self, child: Child) -> None:
        """The last episode has ended."""


class Child:
    """Runs episodes, or scores, one request at a time."""

    def __init__(self, process: Launched, owner: Owner) -> None:
        self.environments: dict[str, Described] = {}
        self.refused: dict[str, Failure] = {}
        self.dead: Failure | None = None
        self.full = False
        self.live = 0
        """Episodes that the pool has in it."""
        self.leaving = False
        """True if nothing more begins in it."""
        self.busy = 0.0
        """Share of a core that its episodes take, or hold without computing; above 1 with several threads."""
        self._served = False
        self._closing = False
        self._process = process
        self._channel: Channel | None = None
        self._owner: Owner | None = owner
        self._loop = asyncio.get_running_loop()  # in Python 3.11 each request for it is a system call
        self._hello: asyncio.Future[Hello] = self._loop.create_future()
        self._plays: dict[int, Play] = {}
        self._cancelled: dict[int, int] = {}
        self._started = 0
        self._allowed = 0.0
        """Seconds that the only request in progress may take; 0 if episodes run."""
        self._heart: asyncio.Task[None] | None = None

    @classmethod
    async def start(cls, path: Path, folders: Folders, owner: Owner, patience: float) -> Child:
        try:
            child = cls(await launch(path, folders), owner)
        except OSError as error:  # its Python is gone, or no process can be had
            raise BrokenPlugin(Failure(f"its process cannot be started: {error}"), died=True) from error
        try:
            await child._connect(patience)
            if child.dead is not None:
                raise BrokenPlugin(child.dead, died=True)
        except BaseException:
            child.kill("it was stopped while it started")
            await child.wait()
            raise
        finally:
            child._process.trim_log()
        return child

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def idle(self) -> bool:
        return not self._plays and not self._cancelled

    async def play(self, environment: str, spec: EpisodeSpec, answer: Answer) -> EpisodeOutcome | Unscored:
        request = {"op": "start", "environment": environment, **vars(spec)}
        return cast(EpisodeOutcome | Unscored, await self._run(request, answer, (EpisodeOutcome, Unscored)))

    async def facts(self, environment: str, data: Mapping[str, Any] | None) -> DataFacts | EpisodeOutcome:
        request = {"op": "facts", "environment": environment, "data": data}
        return cast(DataFacts | EpisodeOutcome, await self._run(request, None, (DataFacts, EpisodeOutcome)))

    async def score(self, environment: str, played: Unscored, transcript: Transcript, timeout: float) -> EpisodeOutcome:
        """Raises ``ValueError`` if too large. ``timeout``: seconds until an interrupt."""
        self._allowed = timeout
        request = encode_score(environment, played, transcript, timeout)
        return cast(EpisodeOutcome, await self._run(request, None, (EpisodeOutcome,)))

    async def rank(
        self, environment: str, members: Sequence[EpisodeOutcome], timeout: float
    ) -> Ranking | EpisodeOutcome:
        self._allowed = timeout
        verdict = await self._run(encode_rank(environment, members, timeout), None, (Ranking, EpisodeOutcome))
        if isinstance(verdict, Ranking) and len(verdict.rewards) != len(members):
            return EpisodeOutcome("error", failure=Failure("its process sent rewards for another group"))
        return cast(Ranking | EpisodeOutcome, verdict)

    def interrupt(self) -> None:
        self._process.interrupt()

    async def _run(self, request: Record, answer: Answer | None, outcomes: tuple[type, ...]) -> Outcome:
        if self.dead is not None:
            return EpisodeOutcome("error", failure=self.dead, died=True)
        self._beat()
        self._started += 1
        number = self._started
        self._send(request | {"episode": number})
        ended: asyncio.Future[Outcome] = self._loop.create_future()
        play = self._plays[number] = Play(answer, outcomes, ended, time.monotonic())
        try:
            return await ended
        finally:
            for task in play.asks:
                task.cancel()
            if self._plays.pop(number, None) is not None and self.dead is None:
                self._cancelled[number] = 0
                self._send({"op": "cancel", "episode": number})

    def kill(self, reason: str, cut: bool = False) -> None:
        """End it without a call to the owner.

        Episodes end as errors; if ``cut``, as cancelled: they are not to blame.
        """
        self._owner = None
        self._closing = any(found.closes for found in self.environments.values())
        self._die(Failure(reason), status="cancelled" if cut else "error")

    async def wait(self) -> None:
        if self._closing:  # its connection is closed
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_CLOSING):
                    await self._process.wait()
            self._process.kill()
        await self._process.wait()

    async def _connect(self, patience: float) -> None:
        _, self._channel = await self._loop.create_connection(
            lambda: Channel(self.receive, self._lost, _MOST_VALUES, READ_RATE, decode_body, encode_body),
            sock=self._process.connection,
        )
        await self._imported(patience)
        hello = self._hello.result()
        self._served = True
        self.environments = {found.name: found for found in hello.environments}
        self.refused = {found.name: found.failure for found in hello.refused}

    async def _imported(self, patience: float) -> None:
        """Waits for a core do not count. Raises ``BrokenPlugin``."""
        began, before = time.monotonic(), self._process.delayed()
        while not self._hello.done():
            took = time.monotonic() - began
            delayed = self._process.delayed() - before
            left = min(patience - took + delayed, wall_limit(patience) - took)
            if left <= 0:
                self._process.interrupt()  # it can still report its current line
                await asyncio.wait((self._hello,), timeout=BEAT)
                if not self._hello.done():
                    raise BrokenPlugin(Failure(TOO_LONG.format(patience)))
            else:
                await asyncio.wait((self._hello,), timeout=max(left, _SOONEST))

    def _send(self, record: Record) -> None:
        if self._channel is not None:
            self._channel.send(record)

    def receive(self, record: Record) -> None:
        try:
            if self._too_late(record):
                return
            match parse_message(record, clean=True):
                case (Asked() | Opening()) as request:
                    self._asked(request)
                case Settled() as settled:
                    self._settled(settled)
                case (Ended() | Ranked() | Facts()) as ended:
                    self._ended(ended)
                case Broken(failure):
                    self._die(failure)
                case Hello() as hello:
                    if self._hello.done():
                        raise WireError("a second hello")
                    self._hello.set_result(hello)
        except WireError as error:
            self._die(Failure(f"its process broke the protocol: {error}"))

    def _too_late(self, record: Record) -> bool:
        """True for an ask, an opening or a final reward of a cancelled episode.

        Only as many can come as may wait at once: more break the protocol.
        """
        episode = record.get("episode")
        if type(episode) is not int or episode not in self._cancelled:
            return False
        if record.get("op") not in ("ask", "endpoint", "final"):
            return False
        self._cancelled[episode] += 1
        if self._cancelled[episode] > MOST_ASKS:
            raise WireError(f"it sent more than {MOST_ASKS} asks of episode {episode} after that was cancelled")
        return True

    def _asked(self, request: Asked | Opening) -> None:
        play = self._plays.get(request.episode)
        if play is None or play.answer is None or len(play.asks) >= MOST_ASKS:
            what = "an ask" if isinstance(request, Asked) else "a request for an address"
            raise WireError(f"{what} of episode {request.episode} out of turn")
        play.asks.add(self._loop.create_task(self._respond(play, play.answer, request)))

    async def _respond(self, play: Play, answer: Answer, request: Asked | Opening) -> None:
        try:
            if isinstance(request, Asked):
                self._send(encode_reply(request.id, await answer(request.ask)))
            else:
                await self._open(play, answer, request)
        except asyncio.CancelledError:
            play.ended.cancel()
            raise
        except Exception as error:  # the engine's own error goes to the caller of the episode
            if not play.ended.done():
                play.ended.set_exception(error)
        finally:
            if (task := asyncio.current_task()) is not None:
                play.asks.discard(task)

    async def _open(self, play: Play, answer: Answer, opening: Opening) -> None:
        try:
            endpoint = await endpoint_of(answer)(EpisodeListener(play, answer, opening, self._send))
            door = self._process.door
            self._send(encode_endpoint(opening.id, endpoint, await door.open(endpoint.url) if door else ""))
        except MarlaasError as error:
            self._send(encode_endpoint(opening.id, Endpoint("", ""), error=str(error)))

    def _settled(self, settled: Settled) -> None:
        play, agent = self._plays.get(settled.episode), settled.agent
        if play is None or play.answer is None or agent in play.final or len(play.final) >= MOST_ASKS:
            raise WireError(f"a final reward of episode {settled.episode} out of turn")
        play.final.add(agent)
        if isinstance(play.answer, Answering):
            play.answer.settle(settled.final)

    def _ended(self, ended: Ended | Ranked | Facts) -> None:
        self.full = self.full or (isinstance(ended, Ended) and ended.full)
        if ended.episode in self._cancelled:
            del self._cancelled[ended.episode]
            if self.idle and self._owner is not None:
                self._owner.idled(self)
            return
        play = self._plays.get(ended.episode)
        if play is None:
            raise WireError(f"episode {ended.episode} ended twice")
        outcome = ended.outcome
        if not isinstance(outcome, play.outcomes):
            raise WireError(f"episode {ended.episode} ended as something else")
        del self._plays[ended.episode]
        if not play.ended.done():
            play.ended.set_result(outcome)

    def _lost(self, reason: str) -> None:
        if self.dead is None:
            self._loop.create_task(self._autopsy(reason))

    async def _autopsy(self, reason: str) -> None:
        """The socket closes a moment before the process; its exit code explains more."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(BEAT):
                reason = await self._process.wait()
        self._die(Failure(reason), silently=True)

    def _die(
        self, failure: Failure, status: EpisodeStatus = "error", silently: bool = False, overloaded: bool = False
    ) -> None:
        if self.dead is not None:
            return
        self.dead = failure
        if not self._closing:
            self._process.kill()
        if self._heart is not None:
            self._heart.cancel()
        if not self._hello.done():
            self._hello.set_exception(BrokenPlugin(failure, died=silently))
            self._hello.exception()
        for play in self._plays.values():
            if not play.ended.done():
                seconds = time.monotonic() - play.began
                ended = EpisodeOutcome(status, failure=failure, seconds=seconds, overloaded=overloaded, died=True)
                play.ended.set_result(ended)
        self._plays.clear()
        self._cancelled.clear()
        if self._channel is not None:
            self._channel.close(failure.message)
        if self._served and self._owner is not None:
            self._owner.died(self, failure)

    def _beat(self) -> None:
        if self._heart is None or self._heart.done():
            self._heart = self._loop.create_task(self._heartbeat())

    async def _heartbeat(self) -> None:
        pulse = self._process.pulse
        pulse.answer()  # to a question before the last rest
        answered = time.monotonic(), self._process.computed(), self._process.delayed()
        while not self.idle:
            pulse.ask()
            self._process.trim_log()
            await asyncio.sleep(BEAT)
            beat, now = pulse.answer(), (time.monotonic(), self._process.computed(), self._process.delayed())
            wall, computed, delayed = (after - before for before, after in zip(answered, now, strict=True))
            if beat is not None:
                held = min(wall, computed + max(0.0, beat.held - delayed))  # a loop takes one core, threads more
                self.busy, answered = max(computed, held) / max(wall, 1e-9), now
                if beat.stubborn and self._allowed:
                    self._die(Failure(f"its score took longer than {self._allowed:g} s and did not stop"), "timeout")
                elif beat.stubborn:
                    self._die(Failure(UNSTOPPABLE))
            elif verdict := judged(wall, computed, len(self._plays), self._allowed):
                self._die(Failure(HUNG if verdict == "hung" else STILL), overloaded=verdict == "still")
            elif computed >= max(INTERRUPTED_AFTER, self._allowed):
                self._process.interrupt()  # ends compiled code that looks at signals
            if self.dead is not None:
                return
        self.busy = 0.0
