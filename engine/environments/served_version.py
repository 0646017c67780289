"""One version of one plugin, and the lease of a group on it.

A dead process starts again, with growing delays, or rests (``health``). A replaced version ends with its last lease, or
after a grace.
"""

from __future__ import annotations

import asyncio
import json
from collections import deque
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any, TypeVar

from marlaas.plugins.messages import Answer, Ask, Endpoint, Message, Reply
from marlaas.plugins.rewards import DEFAULT_AGENT, Transcript
from marlaas.plugins.sandbox_supervisor import wall_limit

from ..racing import until_first
from ..trajectories import Failure
from .health import Health
from .pool import Cut, ProcessBudget, ProcessPool
from .process.child import BrokenPlugin, Child
from .process.launch import Folders, Workers, lend, stamped
from .process.wire import Described
from .protocol import (
    Answering,
    Crew,
    DataFacts,
    EpisodeOutcome,
    EpisodeSpec,
    EventKind,
    Listener,
    Opens,
    Ranking,
    Unscored,
    endpoint_of,
)

PROGRAMS_FOR_EACH_CORE, LEAST_PROGRAMS, MOST_PROGRAMS = 4, 8, 64
"""Episodes of programs at once, in all processes of a version: programs wait for the model or files."""
PATIENCE = 10.0
REPLACED = "a newer version took its place"
IMPORT_PATIENCE = 30.0
SHORTEST, LONGEST = 30.0, 3600.0
FACTOR = 3.0
REMEMBERED = 256
SCORE_GRACE = 0.5
TRIES = 2
"""Of a score: it need not be the cause of its process's death."""
LARGEST_TRANSCRIPT = 2 << 20
"""With the episode's task it must fit into one message."""

Ended = TypeVar("Ended", EpisodeOutcome, EpisodeOutcome | Unscored)
Verdict = TypeVar("Verdict", EpisodeOutcome, Ranking | EpisodeOutcome)


async def first_ask(
    play: Callable[[EpisodeSpec, Answer], Awaitable[Ended]], spec: EpisodeSpec, opens: Opens | None = None
) -> Ask | Ended:
    """The episode's first ask, or its end without one.

    ``opens`` gives an address for programs; the first ask there counts. Without it, a request for an address is an
    empty ask.
    """
    asked: asyncio.Future[Ask] = asyncio.get_running_loop().create_future()

    async def listen(ask: Ask) -> Reply:
        if not asked.done():
            asked.set_result(ask)
        return await asyncio.Future()  # open until the episode is cancelled

    async def unopened(listener: Listener) -> Endpoint:
        await listen(Ask(next(iter(listener.agents), DEFAULT_AGENT), ()))
        raise AssertionError("an ask is never answered here")

    episode = asyncio.ensure_future(play(spec, Answering(listen, endpoint=opens or unopened)))
    return asked.result() if 0 in await until_first(asked, episode) else episode.result()


async def probe(child: Child, each: bool = False) -> dict[str, Failure]:
    """Try every environment that runs on defaults.

    ``BrokenPlugin`` names the first that fails; with ``each``, failing ones are returned, unless all fail.
    """
    ready = [
        found
        for found in child.environments.values()
        if found.rows != "task" and not any(parameter.required for parameter in found.parameters)
    ]
    tried = zip(ready, await asyncio.gather(*(_tried(child, found) for found in ready)), strict=True)
    failures = {found.name: failure for found, failure in tried if failure is not None}
    if failures and (child.dead is not None or not each or len(failures) == len(child.environments)):
        raise BrokenPlugin(next(iter(failures.values())))
    return failures


async def _tried(child: Child, found: Described) -> Failure | None:
    config = {parameter.name: parameter.default for parameter in found.parameters}
    patience = min(PATIENCE, found.timeout)
    spec = EpisodeSpec("train", index=0, seed=0, member=0, config=config, timeout=patience)
    reached = await first_ask(lambda spec, answer: child.play(found.name, spec, answer), spec)
    if isinstance(reached, Ask | Unscored) or reached.status in ("ok", "skip"):
        return None
    return reached.failure or Failure(f"{found.name} ended as {reached.status} before its first ask")


class ServedVersion:
    """A version: processes, leases and health."""

    def __init__(
        self,
        version: str,
        path: Path,
        folders: Folders,
        tell: Callable[[EventKind, str, Failure | None], None],
        budget: ProcessBudget,
        code: str = "",
    ) -> None:
        self.version = version
        self.code = code
        self.environments: dict[str, Described] = {}
        self.refused: dict[str, Failure] = {}
        self._unproven: dict[str, Failure] = {}
        self.health = Health()
        self.leases = 0
        self.retired = False
        self.replaced = False
        """By another start of the same version."""
        self.cut = False
        self.cuts = 0
        self.grace = 0.0
        self._by_version = 0
        self._path = path
        self._folders = folders
        self._tell = tell
        self._shaken = False
        self._seconds: deque[float] = deque(maxlen=REMEMBERED)
        """Durations of the last episodes, the model's time included."""
        self._begun = 0
        self._undecided: dict[int, tuple[str, EpisodeSpec]] = {}
        self._expiry: asyncio.TimerHandle | None = None
        most = max(LEAST_PROGRAMS, PROGRAMS_FOR_EACH_CORE * budget.cores)
        self._programs = asyncio.Semaphore(min(MOST_PROGRAMS, most))
        bounds, episodes = folders.runtime.workers, folders.runtime.episodes
        self._playing = ProcessPool(self, self._launched, budget, bounds, episodes)
        self._scoring = ProcessPool(self, self._launched, budget, bounds, episodes, scores=True)

    async def prove(self) -> None:
        try:
            while True:
                child = await self._playing.alive()
                try:
                    self._unproven = await probe(child, each=self._path.suffix == ".toml")
                    return self._take(child)
                except BrokenPlugin:
                    if child.dead is None:
                        raise  # else it is tried again, until it rests
        except BaseException:
            await self.stop("it was found broken")
            raise

    async def warm(self) -> None:
        await self._playing.alive()

    def apart(self) -> ServedVersion:
        folders = replace(self._folders, runtime=replace(self._folders.runtime, workers=Workers(1, 1)))
        return ServedVersion(
            self.version, self._path, folders, lambda kind, version, failure: None, ProcessBudget(), self.code
        )

    @property
    def children(self) -> list[Child]:
        return self._playing.children

    @property
    def pids(self) -> list[int]:
        return [*self._playing.pids, *self._scoring.pids]

    @property
    def crew(self) -> Crew:
        playing = self._playing
        return Crew(len(playing.children), len(self._scoring.children), playing.live, playing.waiting)

    @property
    def over(self) -> bool:
        return not self.leases and self._playing.over and self._scoring.over

    async def play(self, environment: str, spec: EpisodeSpec, answer: Answer, counts: bool = False) -> EpisodeOutcome:
        """The place is freed before scoring, and the answer gets ``over``."""
        described = self.environments.get(environment)
        async with self._programs if described is not None and described.program else nullcontext():
            return await self._play(environment, spec, answer, counts)

    async def _play(self, environment: str, spec: EpisodeSpec, answer: Answer, counts: bool) -> EpisodeOutcome:
        if self.cut:
            return EpisodeOutcome("cancelled", failure=Failure(REPLACED))
        try:
            child = self._playing.take() or await self._playing.wait()
        except BrokenPlugin as error:
            return EpisodeOutcome("error", failure=error.failure)
        except Cut:
            return EpisodeOutcome("cancelled", failure=Failure(REPLACED))
        described = self.environments[environment]
        recorder = Recorder(answer) if described.recorded else None
        if counts:
            number = self._begun = self._begun + 1
            self._undecided[number] = environment, spec
        try:
            try:
                played = await child.play(environment, spec, recorder or answer)
            finally:
                self._playing.leave(child)
                if self.retired:
                    self.stop_if_done()
            if isinstance(answer, Answering):
                answer.over()
            if isinstance(played, Unscored):
                outcome = await self._scored(described, played, recorder or Recorder(answer))
            else:
                outcome = played
            if described.ranked and recorder is not None:
                outcome = replace(outcome, task=played.task, transcript=recorder.transcript)
        finally:
            if counts:
                del self._undecided[number]
        self._seconds.append(outcome.seconds)
        if counts and (outcome.status != "ok" or self.health.troubled):
            self._judge(environment, spec, outcome, child, number)
        return outcome

    async def room(self) -> None:
        await self._playing.room()

    async def rank(self, environment: str, members: Sequence[EpisodeOutcome]) -> Ranking | EpisodeOutcome:
        found = self.environments[environment]
        return await self._verdict(found, lambda child: child.rank(found.name, members, found.score_timeout))

    async def _scored(self, found: Described, played: Unscored, recorder: Recorder) -> EpisodeOutcome:
        if recorder.too_long:
            return EpisodeOutcome("error", failure=Failure("more was said in the episode than can be scored"))
        transcript, seconds = recorder.transcript, found.score_timeout
        scored = await self._verdict(found, lambda child: child.score(found.name, played, transcript, seconds))
        return replace(scored, metrics=played.metrics, paid=played.paid, seconds=played.seconds + scored.seconds)

    async def _verdict(self, found: Described, ask: Callable[[Child], Awaitable[Verdict]]) -> Verdict | EpisodeOutcome:
        scoring = self._scoring
        ends, tries = scoring.ends, 0
        while not self.cut:
            tries += 1
            again = tries < TRIES
            try:
                child = scoring.take() or await scoring.wait()
            except Cut:
                break
            except BrokenPlugin as error:
                if error.died and again and scoring.ends == ends:
                    continue
                return EpisodeOutcome("error", failure=error.failure)
            try:
                verdict = await _within(found.score_timeout, child, ask)
            except ValueError as error:
                return EpisodeOutcome("error", failure=Failure(f"too much was said to be scored: {error}"))
            finally:
                scoring.leave(child)
            gone = child.dead or child.full
            failed = isinstance(verdict, EpisodeOutcome) and verdict.status == "error"
            if not (failed and gone and again and scoring.ends == ends):
                return verdict
        return EpisodeOutcome("cancelled", failure=Failure(REPLACED))

    async def facts(self, environment: str, data: Mapping[str, Any] | None) -> DataFacts:
        child = await self._playing.alive()
        try:
            found = await child.facts(environment, data)
        finally:
            if self.retired:
                self.stop_if_done()
        if isinstance(found, DataFacts):
            return found
        raise BrokenPlugin(found.failure or Failure(f"{environment} ended as {found.status}"), child.dead is not None)

    async def lent(self, data: Mapping[str, Any]) -> Mapping[str, Any]:
        data = await asyncio.to_thread(stamped, data)
        if self._folders.runtime.confinement is None:
            return data
        return await asyncio.to_thread(lend, data, self._folders.lent)

    def hold(self, by_version: bool) -> None:
        self.leases += 1
        if by_version:
            self._by_version += 1
            self.cut = False  # a lease by version is not sent to a newer one

    def release(self, by_version: bool) -> None:
        self.leases -= 1
        self._by_version -= by_version
        self.stop_if_done()

    def retire(self) -> None:
        """Running groups get three times the longest of the last durations."""
        self.retired = True
        self.stop_if_done()
        if self._expiry is None and (self.leases or self._playing.size):
            longest = max(self._seconds, default=0.0)
            self.grace = min(LONGEST, max(SHORTEST, FACTOR * longest))
            self._expiry = asyncio.get_running_loop().call_later(self.grace, self.expire)

    def promote(self) -> None:
        self.retired = self.cut = False
        if self._expiry is not None:
            self._expiry.cancel()
            self._expiry = None
        self._playing.fill()

    def expire(self) -> None:
        self._expiry = None
        if self.retired and not self._by_version:
            self.cut = True
            self.cuts += 1
            self._scoring.end(REPLACED, cut=True)
            self._playing.end(REPLACED, cut=True)

    def stop_if_done(self) -> None:
        if self.retired and not self.leases:
            self._scoring.end(REPLACED)
            self._playing.end_idle(REPLACED)

    async def stop(self, reason: str) -> None:
        if self._expiry is not None:
            self._expiry.cancel()
        await self._scoring.stop(reason)
        await self._playing.stop(reason)

    # Called by its pools.

    @property
    def needed(self) -> bool:
        return self.leases > 0 or not self.retired

    def started(self) -> None:
        if self._shaken:
            self._shaken = False
            self._tell("restarted", self.version, None)
        self.stop_if_done()

    def bury(self, pool: ProcessPool, failure: Failure, others: int) -> None:
        if pool.scores:
            failure = replace(failure, message=f"its scoring process: {failure.message}")
            self._tell("died", self.version, failure)
            return
        self._shaken = self._shaken or not others
        rest = self.health.died(failure, others + 1)
        self._tell("quarantined" if rest else "died", self.version, rest or failure)

    async def _launched(self, pool: ProcessPool) -> Child:
        child = await Child.start(self._path, self._folders, pool, IMPORT_PATIENCE)
        self._take(child)
        return child

    def _take(self, child: Child) -> None:
        self.environments = {name: one for name, one in child.environments.items() if name not in self._unproven}
        self.refused = child.refused | self._unproven

    def _judge(self, environment: str, spec: EpisodeSpec, outcome: EpisodeOutcome, child: Child, number: int) -> None:
        """``bury`` records a process's death.

        In a process with full memory all instances fail together, but work in another.
        """
        settings = settings_of(environment, spec.config, spec.data)
        if outcome.status == "ok":
            if self.health.did_well(settings):
                self._tell("recovered", self.version, None)
        elif outcome.status in ("error", "timeout") and not (child.dead or child.full or outcome.overloaded):
            failure = outcome.failure or Failure(f"{environment} ended as {outcome.status}")
            instance = spec.split, spec.seed, spec.index
            first = partial(self._first_undecided, settings)
            if rest := self.health.failed(settings, instance, failure, number, first):
                self._tell("quarantined", self.version, rest)

    def _first_undecided(self, settings: tuple[str, str]) -> int | None:
        undecided = self._undecided.items()
        return next((n for n, (name, spec) in undecided if settings_of(name, spec.config, spec.data) == settings), None)


async def _within(seconds: float, child: Child, ask: Callable[[Child], Awaitable[Verdict]]) -> Verdict | EpisodeOutcome:
    """The process limits the function's own time; past the wall limit it is interrupted, then killed."""
    verdict = asyncio.ensure_future(ask(child))
    try:
        await asyncio.wait((verdict,), timeout=wall_limit(seconds) + SCORE_GRACE)
        if not verdict.done():
            child.interrupt()
            await asyncio.wait((verdict,), timeout=SCORE_GRACE)
        if verdict.done():
            return verdict.result()
        return EpisodeOutcome("timeout", failure=Failure(f"its score took longer than {seconds:g} s and did not stop"))
    finally:
        if not verdict.done():
            child.kill("it did not stop scoring")
            verdict.cancel()
            await asyncio.gather(verdict, return_exceptions=True)


def settings_of(environment: str, config: Mapping[str, Any], data: Mapping[str, Any] | None = None) -> tuple[str, str]:
    """Repaired rows have another stamp, and so another key."""
    named = "" if data is None else f" {data['path']} {data['stamp']}"
    return environment, json.dumps(config, sort_keys=True, default=repr) + named


@dataclass(eq=False)
class Lease:
    """Made by ``EnvironmentService.bind``; release it, or use ``with``."""

    environment: str
    """"plugin/environment"."""
    declared: Described
    serving: ServedVersion
    config: dict[str, Any] = field(default_factory=dict)
    by_version: bool = False
    """By version, not as the newest: never cut off."""
    data: Mapping[str, Any] | None = None
    digest: str = ""
    """``DataFacts.digest``, if requested."""
    released: bool = False

    def __post_init__(self) -> None:
        self._cuts = self.serving.cuts

    @property
    def environment_version(self) -> str:
        return self.serving.version

    @property
    def code(self) -> str:
        """Equal after an edited comment."""
        return self.serving.code

    @property
    def rows(self) -> tuple[str, str]:
        return self.environment_version, "" if self.data is None else str(self.data["stamp"])

    @property
    def cut(self) -> bool:
        """True if the version was replaced and its process ended before the group.

        Stays True: its cancelled episodes are lost.
        """
        return self.serving.cut or self.serving.cuts > self._cuts

    @property
    def ends(self) -> str:
        """Why the task waits if a newer version exists, without a full stop."""
        if self.by_version or not self.serving.retired:
            return ""
        return (
            f"waits for episodes on version {self.environment_version[:8]} of {self.environment}, which was replaced;"
            f" what takes longer than {self.serving.grace:.0f} s from then on is cut off"
        )

    @property
    def rest(self) -> Failure | None:
        return self.serving.health.resting_with(settings_of(self.declared.name, self.config, self.data))

    def release(self) -> None:
        if not self.released:
            self.released = True
            self.serving.release(self.by_version)

    def __enter__(self) -> Lease:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.release()


class Recorder:
    """Records asks and answers, for a later score or ranking.

    So the transcript is true, and is not sent twice.
    """

    def __init__(self, answer: Answer) -> None:
        self.too_long = False
        self._answer = answer
        self._said: dict[str, list[Message]] = {}
        self._size = 0

    async def __call__(self, ask: Ask) -> Reply:
        self._keep(ask.agent, ask.messages)
        reply = await self._answer(ask)
        self._keep(ask.agent, (Message("assistant", reply.text, tool_calls=reply.tool_calls),))
        return reply

    async def endpoint(self, listener: Listener) -> Endpoint:
        return await endpoint_of(self._answer)(listener)

    @property
    def transcript(self) -> Transcript:
        return Transcript({agent: tuple(said) for agent, said in self._said.items()})

    def _keep(self, agent: str, messages: Sequence[Message]) -> None:
        self._size += sum(len(message.content) for message in messages)
        self.too_long = self.too_long or self._size > LARGEST_TRANSCRIPT
        if self.too_long:
            self._said.clear()
        else:
            self._said.setdefault(agent, []).extend(messages)
