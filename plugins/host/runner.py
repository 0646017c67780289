"""Runs one episode, or one scoring: from the engine's message to the record of its end.

Exactly one record of the end is sent, whatever the plugin does. The host carries asks to the engine; sockets, processes
and other episodes are unknown here.
"""

from __future__ import annotations

import asyncio
import functools
import inspect
import threading
import time
from collections.abc import Callable
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
from .meter import METER, Clock, Usage, charged
from .threads import HELD, Late, Stopped, ended, in_thread

if TYPE_CHECKING:
    from .process import PluginHost

GRACE = 5.0
"""Seconds of its own that a cancelled episode gets to end before the whole process is ended."""


_UNFIT: Record = {
    "message": "the machine was too busy for a program in the sandbox to be judged",
    "file": "",
    "line": 0,
    "traceback": "",
}


class Run:
    """One episode in progress."""

    def __init__(self, host: PluginHost, start: Record, environment: Environment) -> None:
        self.number: int = start["episode"]
        self.environment = environment
        self._host = host
        self._start = start
        self._seconds: float = environment.timeout if start["timeout"] is None else start["timeout"]
        self._late = self._overloaded = False
        self._loop = asyncio.get_running_loop()
        self._thread = threading.get_ident()
        self._usage = Usage()
        self._clock = self._usage.limit = Clock(self._loop, self._seconds, self._expire, self._usage)
        self._episode = Episode(
            self._answer,
            split=start["split"],
            index=start["index"],
            seed=start["seed"],
            member=start["member"],
            config=start["config"],
            queueing=self._clock.paused,
            declared=environment.agents,
            apart=None if environment.blocking else in_thread,
            starved=self._starve,
            settle=None if environment.scorer or environment.ranker else self._settle,
            opens=self._open,
        )
        self._called = False
        """True while a program waits for the model, so that the clock stands still."""
        self._asks: set[asyncio.Future[Reply]] = set()
        self._replied = False
        """True after any agent's answer: an earlier failure does not depend on the model."""
        self._began = time.monotonic()
        self._grace: Clock | None = None
        self.task = charged(self._loop, self._play(), self._usage)

    def called(self, agent: str, under_way: int, replies: int) -> None:
        """A program of the episode has called the model as ``agent``, or such a call has ended.

        ``under_way``: calls of all its agents that wait for the model.
        """
        if self.task.done():
            return
        with suppress(ValueError):  # it has as many agents as it may
            self._episode.called(agent, replies)
        self._replied = self._replied or replies > 0
        if under_way and not self._called:
            self._clock.pause()
        elif self._called and not under_way:
            self._clock.resume()
        self._called = under_way > 0

    def cancel(self) -> None:
        self.task.cancel()
        if self._grace is None:
            self._grace = Clock(self._loop, GRACE, lambda _: self._host.give_up(self), self._usage)
            self._usage.limit = self._grace

    async def _play(self) -> None:
        try:
            end = await self._outcome()
        except Skip:
            end = {"status": "skip"}
        except asyncio.CancelledError as error:
            end = self._timeout(error, self._lateness()) if self._late else {"status": "cancelled"}
        except Stopped as error:
            self._overloaded |= error.args == ("wall",)
            end = self._timeout(error, HELD if error.args == (HELD,) else self._lateness())
        except (Late, Starved) as error:
            self._overloaded |= isinstance(error, Late) and error.overloaded
            end = self._timeout(error, str(error))
        except BaseException as error:  # SystemExit too: a plugin does not end its process
            end = {"status": "error", "failure": self._host.blame.of(error)}
            if isinstance(error, MemoryError) and full():
                end["full"] = True
        if self._overloaded:
            end = {"overloaded": True, "status": "timeout", "failure": end.get("failure") or _UNFIT}
        self._clock.stop()
        self._usage.limit = None
        ended(self._usage)
        if self._grace is not None:
            self._grace.stop()
        for ask in self._asks:
            ask.cancel()
        end["metrics"], end["paid"] = self._metrics(), self._episode.paid
        end["seconds"] = time.monotonic() - self._began
        self._host.ended(self, end)

    async def _outcome(self) -> Record:
        invalid, failure = "", None
        try:
            result = await self._call()
        except Invalid as error:
            result, invalid = error.reward, str(error) or "invalid"
        except Exception as error:
            if self.environment.on_error is None or not self._replied or not may_pay(error):
                raise
            result, failure = self.environment.on_error, self._host.blame.of(error)
        try:
            if invalid:
                result = finite(result, "the reward of Invalid")
            task = self._task()
            if self.environment.scorer is not None and not invalid and failure is None:
                return self._unscored(result) | task
            rewards = rewards_of(result, self._episode.payees, self._episode.earned, self._episode.final)
        except (TypeError, ValueError) as error:
            return {"status": "error", "failure": self._host.blame.of_function(error, self.environment.function)}
        end = {"status": "ok", "rewards": rewards.by_agent, "parts": rewards.parts, "invalid": invalid}
        return end | ({} if failure is None else {"failure": failure}) | task

    def _metrics(self) -> dict[str, float | str]:
        sandbox: Sandbox | None = vars(self._episode).get("sandbox")
        counted = {} if sandbox is None else {"sandbox_timeouts": float(sandbox.timeouts)}
        return counted | self._episode.logged

    def _task(self) -> Record:
        """The task for another process that scores the episode; empty if nothing scores or ranks it."""
        environment = self.environment
        if environment.scorer is None and environment.ranker is None:
            return {}
        return {"task": sendable(self._episode.task, environment.name)}

    def _unscored(self, result: object) -> Record:
        if result is not None:
            name = self.environment.name
            raise TypeError(f"{name} has a score function, so {name} itself must return nothing, not {result!r:.40}")
        return {"status": "played", "earned": self._episode.earned}

    async def _call(self) -> object:
        environment, episode = self.environment, self._episode
        arguments = dict(episode.config)
        given = self._start.get("data") is not None
        if given or environment.data is not None:
            # finding the rows of a large file takes minutes, once; a data function is the author's, and may hang
            with self._clock.paused() if given or isinstance(environment.data, str) else nullcontext():
                episode.task = row(await self._host.row(environment, self._start))
        if environment.takes_task:
            arguments["task"] = episode.task
        play = environment.function
        if environment.form is not None:
            with self._clock.paused():
                play = await self._host.player(environment)
        if environment.blocking:
            blocking = BlockingEpisode(episode, wait_on(self._loop))
            return await in_thread(functools.partial(play, blocking, **arguments))
        return await play(episode, **arguments)

    async def _open(self) -> Endpoint:
        if self.task.done():
            raise Stopped("the episode has ended")
        with self._clock.paused():  # the first one starts the engine's gateway
            return await self._host.open_endpoint(self)

    async def _answer(self, ask: Ask) -> Reply:
        if self.task.done():
            raise Stopped("the episode has ended")
        if len(self._asks) >= MOST_ASKS:
            raise RuntimeError(f"an episode may wait for at most {MOST_ASKS} replies at the same time")
        reply = self._host.send_ask(self, ask)
        self._asks.add(reply)
        self._clock.pause()
        try:
            said = await reply
            self._replied = True
            return said
        finally:
            self._asks.discard(reply)
            self._clock.resume()

    def _timeout(self, error: BaseException, message: str) -> Record:
        return {"status": "timeout", "failure": self._host.blame.of(error) | {"message": message}}

    def _lateness(self) -> str:
        if self._overloaded:
            return (
                f"the machine or its process was busy: the episode was not over after {wall_limit(self._seconds):g} s"
            )
        return f"the episode took longer than {self._seconds:g} s"

    def _settle(self, agent: str, reward: float) -> None:
        paid = [one for one in self._episode.paid if one["agent"] == agent]
        record: Record = {"agent": agent, "reward": reward, "paid": paid}
        if threading.get_ident() == self._thread:
            self._host.send_final(self, record)  # at once: the episode may end in this turn of the loop
        else:
            self._loop.call_soon_threadsafe(self._host.send_final, self, record)

    def _starve(self) -> None:
        self._overloaded = True

    def _expire(self, overloaded: bool) -> None:
        self._late, self._overloaded = True, overloaded
        self.cancel()


class ScoringRun:
    """One scoring, or one ranking, in a process that does nothing else.

    A plain ``def`` runs in the main thread, because the signals that graders use for their own time limits work only
    there. It blocks the loop meanwhile; when its time is up, it is interrupted at its line. Only its own time counts,
    as for an episode.
    """

    def __init__(self, host: PluginHost, request: Record, environment: Environment) -> None:
        self.number: int = request["episode"]
        self.environment = environment
        self._host = host
        self._request = request
        self._what = "ranking" if request["op"] == "rank" else "score"
        self._late = self._overloaded = False
        loop, self._usage = asyncio.get_running_loop(), Usage()
        self._clock = self._usage.limit = Clock(loop, request["timeout"], self._expire, self._usage)
        self.task = charged(loop, self._run(), self._usage)

    @property
    def function(self) -> Callable[..., Any]:
        found = self.environment.ranker if self._request["op"] == "rank" else self.environment.scorer
        if found is None:
            raise LookupError(f"{self.environment.name} has no {self._what} function")
        return found

    async def _run(self) -> None:
        began = time.monotonic()
        try:
            answer = await (self._ranked() if self._request["op"] == "rank" else self._scored())
        except Skip:
            answer = {"status": "skip"}
        except BaseException as error:  # SystemExit too: a plugin does not end its process
            answer = self._failed(error)
            if isinstance(error, MemoryError) and full():
                answer["full"] = True
        self._clock.stop()
        seconds = time.monotonic() - began
        METER.blocked += max(0.0, seconds - self._usage.processor - self._usage.blocked)  # its awaits keep the process
        ended(self._usage)
        if "status" in answer:
            answer |= {"op": "end", "seconds": seconds}
        self._host.scored(answer | {"episode": self.number})

    async def _scored(self) -> Record:
        transcript = read_transcript(self._request["transcript"])
        failure = None
        try:
            result = await self._call(row(self._request["task"]), transcript)
        except Exception as error:
            spoke = any(message.role == "assistant" for said in transcript.agents.values() for message in said)
            if self.environment.on_error is None or not spoke or not may_pay(error):
                raise
            result, failure = self.environment.on_error, self._host.blame.of(error)
        payees = tuple(dict.fromkeys((*self.environment.agents, *transcript.agents)))
        try:
            rewards = score_of(result, payees, self._request["earned"])
        except (TypeError, ValueError) as error:
            return self._refused(error)
        end = {"status": "ok", "rewards": rewards.by_agent, "parts": rewards.parts}
        return end if failure is None else end | {"failure": failure}

    async def _ranked(self) -> Record:
        members = [
            Member(
                task=row(member["task"]),
                transcript=read_transcript(member["transcript"]),
                rewards=member["rewards"],
                parts=member["parts"],
                logged=member["logged"],
                invalid=member["invalid"],
            )
            for member in self._request["members"]
        ]
        result = await self._call(members)
        try:
            return {"op": "ranked", "rewards": ranks_of(result, members)}
        except (TypeError, ValueError) as error:
            return self._refused(error)

    async def _call(self, *arguments: Any) -> object:
        result = self.function(*arguments)
        return await result if inspect.isawaitable(result) else result

    def _expire(self, overloaded: bool) -> None:
        self._late, self._overloaded = True, overloaded
        self.task.cancel()

    def _refused(self, error: Exception) -> Record:
        return {"status": "error", "failure": self._host.blame.of_function(error, self.function)}

    def _failed(self, error: BaseException) -> Record:
        if not self._late and not isinstance(error, Stopped):
            return {"status": "error", "failure": self._host.blame.of(error)}
        message = f"the {self._what} of {self.environment.name} took longer than {self._request['timeout']:g} s"
        failure = self._host.blame.of(error) | {"message": message}
        overloaded = self._overloaded or error.args == ("wall",)
        return {"status": "timeout", "failure": failure, "overloaded": overloaded}
