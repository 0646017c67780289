"""Runs one episode, scoring or ranking; exactly one record of its end is sent."""

from __future__ import annotations

import asyncio
import functools
import inspect
import threading
import time
from contextlib import nullcontext, suppress
from typing import TYPE_CHECKING, Any

from ..blocking import BlockingEpisode, wait_on
from ..environment import Environment
from ..episode import Episode
from ..json_values import row
from ..messages import MOST_ASKS, Ask, Endpoint, Reply
from ..rewards import Invalid, Member, Skip, finite, ranks_of, rewards_of, score_of, sendable
from ..sandbox import Sandbox, Starved
from ..sandbox_supervisor import wall_limit
from .blame import may_pay
from .channel import Record, read_transcript
from .limits import full
from .meter import OwnTime, charged
from .threads import HELD, Late, Stopped, ended, in_thread

if TYPE_CHECKING:
    from .process import PluginHost

GRACE = 5.0
"""Own seconds of a cancelled episode until the process is ended."""
_UNFIT: Record = {
    "message": "the machine was too busy for a program in the sandbox to be judged",
    "file": "",
    "line": 0,
    "traceback": "",
}


class Running:
    """An episode, scoring or ranking in progress."""

    def __init__(self, host: PluginHost, request: Record, environment: Environment, what: str, seconds: float) -> None:
        self.number: int = request["episode"]
        self.environment = environment
        self.what = what
        self.own = OwnTime(seconds, self.expire)
        self._host = host
        self._request = request
        self._seconds = seconds
        self._late = self._overloaded = self._cancelled = False
        self._began = time.monotonic()
        self.task = charged(self._run(), self.own)

    def cancel(self) -> None:
        self.task.cancel()
        if not self._cancelled:
            self._cancelled = True
            self.own.renew(GRACE, lambda _: self._host.give_up(self), always=True)

    def expire(self, overloaded: bool) -> None:
        self._late, self._overloaded = True, overloaded
        self.cancel()

    async def outcome(self) -> Record:
        """Raises what the author's code does."""
        raise NotImplementedError

    def close(self) -> Record:
        return {"seconds": time.monotonic() - self._began}

    def refused(self, error: Exception, function: Any) -> Record:
        return {"status": "error", "failure": self._host.blame.of_function(error, function)}

    async def _run(self) -> None:
        try:
            end = await self.outcome()
        except Skip:
            end = {"status": "skip"}
        except BaseException as error:  # SystemExit too: a plugin does not end its process
            end = self._failed(error)
        if self._overloaded:
            end = {"overloaded": True, "status": "timeout", "failure": end.get("failure") or _UNFIT}
        ended(self.own)
        self._host.ended(self, end | self.close())

    def _failed(self, error: BaseException) -> Record:
        if isinstance(error, asyncio.CancelledError) and not self._late:
            return {"status": "cancelled"}
        failure = self._host.blame.of(error)
        match error:
            case Stopped():
                self._overloaded |= error.args == ("wall",)
                failure["message"] = HELD if error.args == (HELD,) else self._lateness()
            case Late() | Starved():
                self._overloaded |= isinstance(error, Late) and error.overloaded
                failure["message"] = str(error)
            case asyncio.CancelledError():
                failure["message"] = self._lateness()
            case _ if self._late and isinstance(self, ScoringRun):  # it may catch its end, and raise its own error
                failure["message"] = self._lateness()
            case _:
                return {"status": "error", "failure": failure, "full": isinstance(error, MemoryError) and full()}
        return {"status": "timeout", "failure": failure}

    def _lateness(self) -> str:
        if self._overloaded:
            return (
                f"the machine or its process was busy: {self.what} was not over after {wall_limit(self._seconds):g} s"
            )
        return f"{self.what} took longer than {self._seconds:g} s"


class Run(Running):
    """One episode in progress."""

    def __init__(self, host: PluginHost, start: Record, environment: Environment) -> None:
        seconds: float = environment.timeout if start["timeout"] is None else start["timeout"]
        self._loop, self._thread = asyncio.get_running_loop(), threading.get_ident()
        self._called = False
        """True while a program waits for the model, so that its time stands still."""
        self._asks: set[asyncio.Future[Reply]] = set()
        self._replied = False
        """True after any agent's answer: an earlier failure does not depend on the model."""
        super().__init__(host, start, environment, "the episode", seconds)
        self._episode = Episode(
            self._answer,
            split=start["split"],
            index=start["index"],
            seed=start["seed"],
            member=start["member"],
            config=start["config"],
            queueing=self.own.paused,
            declared=environment.agents,
            apart=None if environment.blocking else in_thread,
            starved=self._starve,
            settle=None if environment.scorer or environment.ranker else self._settle,
            opens=self._open,
        )

    def called(self, agent: str, under_way: int, replies: int) -> None:
        """``under_way``: waiting calls of all agents."""
        if self.task.done():
            return
        with suppress(ValueError):  # it has as many agents as it may
            self._episode.called(agent, replies)
        self._replied = self._replied or replies > 0
        if (under_way > 0) != self._called:
            self._called = under_way > 0
            (self.own.pause if self._called else self.own.resume)()

    def close(self) -> Record:
        for ask in self._asks:
            ask.cancel()
        sandbox: Sandbox | None = vars(self._episode).get("sandbox")
        counted = {} if sandbox is None else {"sandbox_timeouts": float(sandbox.timeouts)}
        return super().close() | {"metrics": counted | self._episode.logged, "paid": self._episode.paid}

    async def outcome(self) -> Record:
        environment, episode = self.environment, self._episode
        invalid, failure = "", {}
        try:
            result = await self._call()
        except Invalid as error:
            result, invalid = error.reward, str(error) or "invalid"
        except Exception as error:
            if environment.on_error is None or not self._replied or not may_pay(error):
                raise
            result, failure = environment.on_error, {"failure": self._host.blame.of(error)}
        try:
            if invalid:
                result = finite(result, "the reward of Invalid")
            judged = environment.scorer is not None or environment.ranker is not None
            task = {"task": sendable(episode.task, environment.name)} if judged else {}
            if environment.scorer is not None and not invalid and not failure:
                if result is None:
                    return {"status": "played", "earned": episode.earned} | task
                name = environment.name
                raise TypeError(
                    f"{name} has a score function, so {name} itself must return nothing, not {result!r:.40}"
                )
            rewards = rewards_of(result, episode.payees, episode.earned, episode.final)
        except (TypeError, ValueError) as error:
            return self.refused(error, environment.function)
        return (
            {"status": "ok", "rewards": rewards.by_agent, "parts": rewards.parts, "invalid": invalid} | failure | task
        )

    async def _call(self) -> object:
        environment, episode = self.environment, self._episode
        arguments, play = dict(episode.config), environment.function
        given = self._request.get("data") is not None
        if given or environment.data is not None:
            # rows of a large file take minutes, once; an author's data function may hang
            with self.own.paused() if given or isinstance(environment.data, str) else nullcontext():
                episode.task = row(await self._host.row(environment, self._request))
        if environment.takes_task:
            arguments["task"] = episode.task
        if environment.form is not None:
            with self.own.paused():
                play = await self._host.player(environment)
        if environment.blocking:
            blocking = BlockingEpisode(episode, wait_on(self._loop))
            return await in_thread(functools.partial(play, blocking, **arguments))
        return await play(episode, **arguments)

    async def _open(self) -> Endpoint:
        if self.task.done():
            raise Stopped("the episode has ended")
        with self.own.paused():  # the first one starts the engine's gateway
            return await self._host.open_endpoint(self)

    async def _answer(self, ask: Ask) -> Reply:
        if self.task.done():
            raise Stopped("the episode has ended")
        if len(self._asks) >= MOST_ASKS:
            raise RuntimeError(f"an episode may wait for at most {MOST_ASKS} replies at the same time")
        future = self._host.send_ask(self, ask)
        self._asks.add(future)
        self.own.pause()
        try:
            reply = await future
            self._replied = True
            return reply
        finally:
            self._asks.discard(future)
            self.own.resume()

    def _settle(self, agent: str, reward: float) -> None:
        paid = [entry for entry in self._episode.paid if entry["agent"] == agent]
        record: Record = {"agent": agent, "reward": reward, "paid": paid}
        if threading.get_ident() == self._thread:
            self._host.send_final(self, record)  # at once: the episode may end in this turn of the loop
        else:
            self._loop.call_soon_threadsafe(self._host.send_final, self, record)

    def _starve(self) -> None:
        self._overloaded = True


class ScoringRun(Running):
    """One scoring or ranking; its process does nothing else.

    A plain ``def`` blocks the main thread: graders' signals for time limits work only there.
    """

    def __init__(self, host: PluginHost, request: Record, environment: Environment) -> None:
        self._ranks = request["op"] == "rank"
        self._what = "ranking" if self._ranks else "score"
        self._function: Any = environment.ranker if self._ranks else environment.scorer
        super().__init__(host, request, environment, f"the {self._what} of {environment.name}", request["timeout"])

    async def outcome(self) -> Record:
        if self._function is None:
            raise LookupError(f"{self.environment.name} has no {self._what} function")
        return await (self._ranked() if self._ranks else self._scored())

    async def _scored(self) -> Record:
        transcript, environment = read_transcript(self._request["transcript"]), self.environment
        failure = {}
        try:
            result = await self._call(row(self._request["task"]), transcript)
        except Exception as error:
            spoke = any(message.role == "assistant" for heard in transcript.agents.values() for message in heard)
            if environment.on_error is None or not spoke or not may_pay(error):
                raise
            result, failure = environment.on_error, {"failure": self._host.blame.of(error)}
        payees = tuple(dict.fromkeys((*environment.agents, *transcript.agents)))
        try:
            rewards = score_of(result, payees, self._request["earned"])
        except (TypeError, ValueError) as error:
            return self.refused(error, self._function)
        return {"status": "ok", "rewards": rewards.by_agent, "parts": rewards.parts} | failure

    async def _ranked(self) -> Record:
        members = [
            Member(**member | {"task": row(member["task"]), "transcript": read_transcript(member["transcript"])})
            for member in self._request["members"]
        ]
        result = await self._call(members)
        try:
            return {"op": "ranked", "rewards": ranks_of(result, members)}
        except (TypeError, ValueError) as error:
            return self.refused(error, self._function)

    async def _call(self, *arguments: Any) -> object:
        result = self._function(*arguments)
        return await result if inspect.isawaitable(result) else result
