"""The host of one plugin version: imports it, and runs or scores episodes.

In: ``start reply endpoint calls cancel facts score rank``; out: ``hello`` or ``broken``, then ``ask endpoint final end
facts ranked``. A scoring process has one request at a time, so its death has a known cause.

Coroutine episodes share one loop: authors' locks belong to it, and authors rely on exclusive execution between awaits.
"""

from __future__ import annotations

import asyncio
import dataclasses
import functools
import inspect
import json
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Sequence
from contextlib import nullcontext, suppress
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any

from ..blocking import BlockingEpisode, wait_on
from ..data import Source, digest_of, row_at, rows_of
from ..environment import Environment
from ..episode import Episode
from ..json_values import row
from ..messages import MOST_ASKS, Ask, Endpoint, Reply, ToolCall, within_limits
from ..rewards import Invalid, Member, Skip, finite, ranks_of, rewards_of, score_of, sendable
from ..sandbox import Sandbox, Starved
from ..sandbox_supervisor import wall_limit
from .blame import Blame, may_pay
from .channel import Channel, Record, message_record, read_transcript
from .limits import full
from .loading import load_all
from .meter import (
    HOGGED,
    EpisodeThreads,
    Instances,
    Late,
    OwnTime,
    Stopped,
    Watchdog,
    charge_tasks,
    charged,
    ended,
    in_thread,
    left_behind,
)

if TYPE_CHECKING:
    from ..programs.forwarder import Forwarder


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
                failure["message"] = HOGGED if error.args == (HOGGED,) else self._lateness()
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
                play = await self._host.instances.player(environment)
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


_MOST_LEFT = 128
_HASTE = 10.0
"""Seconds: after a step that held the loop, the next may, too."""


class PluginHost:
    """One process's state."""

    def __init__(self, path: Path, pulse: socket.socket) -> None:
        self.blame = Blame(path.parent)
        self._path = path
        self._environments: dict[str, Environment] = {}
        self._runs: dict[int, Running] = {}
        self._asked = 0
        self._replies: dict[int, asyncio.Future[Any]] = {}
        """By number, the unanswered asks and requests for an address."""
        self._rows: dict[str, asyncio.Future[Sequence[Any]]] = {}
        self._kept = Path.cwd() / "rows"
        self._loading = True
        self.instances = Instances()
        self._asking: set[asyncio.Task[Any]] = set()
        self._forwarder: Forwarder | None = None
        self._closed = asyncio.Event()
        self._haste = 0.0
        loop = asyncio.get_running_loop()
        loop.set_default_executor(EpisodeThreads())
        charge_tasks(loop)
        self._watchdog = Watchdog(pulse, self._ticked)

    async def serve(self, channel: Channel) -> None:
        self._channel = channel
        self._watchdog.start()
        signal.signal(signal.SIGUSR1, self._interrupt)
        try:
            loaded = load_all(self._path)
            self._environments = loaded.environments
        except BaseException as error:  # SystemExit at import is a broken plugin too
            failure = self.blame.of(error)
            if isinstance(error, Stopped):
                failure["message"] = "importing the plugin takes too long"
            channel.send({"op": "broken", "failure": failure})
            channel.flush()
            return
        finally:
            self._loading = False
        described = [self._described(environment) for environment in loaded.environments.values()]
        refused = [{"name": name, "failure": self.blame.of(error)} for name, error in loaded.refused.items()]
        channel.send({"op": "hello", "environments": described, "refused": refused})
        await self._closed.wait()
        await self.instances.close()

    def _described(self, environment: Environment) -> Record:
        return {
            "name": environment.name,
            "timeout": environment.timeout,
            "description": environment.description,
            "parameters": [dataclasses.asdict(parameter) for parameter in environment.parameters],
            "scored": environment.scorer is not None,
            "ranked": environment.ranker is not None,
            "score_timeout": environment.score_timeout,
            "agents": list(environment.agents),
            "closes": hasattr(environment.form, "close"),
            "rows": environment.rows,
            "program": environment.program,
            "context": environment.context,
        }

    def receive(self, message: Record) -> None:
        match message["op"]:
            case "start" | "score" | "rank" as op:
                kind = Run if op == "start" else ScoringRun
                run = kind(self, message, self._environments[message["environment"]])
                self._runs[run.number] = run
            case "reply" | "endpoint":
                waiting = self._replies.pop(message["id"], None)
                if waiting is not None and not waiting.done():
                    waiting.set_result(reply_of(message) if message["op"] == "reply" else message)
            case "calls":
                if isinstance(called := self._runs.get(message["episode"]), Run):
                    called.called(message["agent"], message["under_way"], message["replies"])
            case "cancel":
                if cancelled := self._runs.get(message["episode"]):
                    cancelled.cancel()
            case "facts":
                self._asking.add(asking := asyncio.ensure_future(self._tell_facts(message)))
                asking.add_done_callback(self._asking.discard)

    def closed(self, _reason: str) -> None:
        self._closed.set()

    def send_ask(self, run: Run, ask: Ask) -> asyncio.Future[Reply]:
        messages = [message_record(message) for message in ask.messages]
        if ask.tools or len(ask.messages) != 1 or ask.messages[0].tool_calls:  # one text is always within them
            within_limits([messages, ask.tools], "what is said, with its tools,")
        record: Record = {"op": "ask", "episode": run.number, "agent": ask.agent, "messages": messages}
        for name in ("tools", "max_tokens", "stop", "branch", "demonstrated"):
            if value := getattr(ask, name):
                record[name] = value
        if ask.fork is not None:
            record["fork"] = dataclasses.asdict(ask.fork)
        return self._requested(record)

    def _requested(self, record: Record) -> asyncio.Future[Any]:
        self._asked += 1
        self._channel.send(record | {"id": self._asked})
        future = self._replies[self._asked] = asyncio.get_running_loop().create_future()
        return future

    async def open_endpoint(self, run: Run) -> Endpoint:
        """Without a network, an address here that leads to a socket. Raises ``RuntimeError``."""
        agents, train = list(run.environment.agents), run.environment.train
        record = await self._requested({"op": "endpoint", "episode": run.number, "agents": agents, "train": train})
        if record["error"]:
            raise RuntimeError(record["error"])
        endpoint = Endpoint(record["url"], record["key"])
        if not record["socket"]:
            return endpoint
        if self._forwarder is None:
            from ..programs.forwarder import Forwarder  # here, because few processes are confined

            self._forwarder = Forwarder(self._kept.parent)
        return await self._forwarder.inside(endpoint, record["socket"])

    async def row(self, environment: Environment, start: Record) -> Any:
        split = start["split"]
        rows = await self.rows(environment, split, start.get("data"))
        return rows[row_at(split, start["seed"], start["index"], len(rows))]

    async def rows(self, environment: Environment, split: str, data: Record | None) -> Sequence[Any]:
        """Found once, in a thread. Raises as ``rows_of``."""
        key = json.dumps((environment.name, split, data), sort_keys=True)
        if key not in self._rows:
            folder = self._path if self._path.is_dir() else self._path.parent
            given = Source.of(data) if data is not None else None
            reading = asyncio.to_thread(rows_of, environment.data, split, folder, given, self._kept)
            self._rows[key] = asyncio.ensure_future(reading)
        finding = self._rows[key]
        try:
            return await asyncio.shield(finding)
        except Exception:
            if self._rows.get(key) is finding:
                del self._rows[key]  # a person may repair the error
            raise

    async def _tell_facts(self, question: Record) -> None:
        """On failure, an ``end`` with status ``error``."""
        environment, data = self._environments[question["environment"]], question["data"]
        answer: Record = {"op": "facts", "episode": question["episode"], "train": 0, "held_out": 0, "digest": ""}
        try:
            if environment.data is not None or data is not None:
                own = data is None and callable(environment.data)  # a file ends, however large; a function may not
                async with asyncio.timeout(environment.timeout if own else None):
                    train = await self.rows(environment, "train", data)
                    held = await self.rows(environment, "eval", data)
                answer |= {"train": len(train), "held_out": len(held)}
                answer["digest"] = await asyncio.to_thread(digest_of, held)
        except BaseException as error:  # SystemExit too: a plugin does not end its process
            if isinstance(error, asyncio.CancelledError):
                raise
            failure = self.blame.of(error)
            if isinstance(error, TimeoutError):
                failure["message"] = f"the data function took longer than {environment.timeout:g} s"
            answer = {"op": "end", "episode": question["episode"], "status": "error", "failure": failure}
        self._channel.send(answer)

    def send_final(self, run: Run, record: Record) -> None:
        if run.number in self._runs:
            self._channel.send({"op": "final", "episode": run.number, **record})

    def ended(self, run: Running, record: Record) -> None:
        del self._runs[run.number]
        end: Record = {"op": "end", "episode": run.number}
        try:
            self._channel.send(end | record)
        except (TypeError, ValueError) as error:  # the plugin's logged values cannot be sent
            failure = self.blame.of_function(error, run.environment.function)
            self._channel.send(end | {"status": "error", "failure": failure})
        if record.get("status") == "timeout":
            self._channel.flush()  # at once: the next step may block the loop, too
        if left_behind() > _MOST_LEFT:
            self._leave(f"{_MOST_LEFT} threads of this plugin did not end with their episodes")

    def give_up(self, run: Running) -> None:
        if not run.task.done():
            self._leave(f"{run.environment.name}: {run.what} ignored that it was cancelled")

    def _leave(self, message: str) -> None:
        self._channel.send({"op": "broken", "failure": {"message": message, "file": "", "line": 0, "traceback": ""}})
        self._channel.flush()
        sys.stdout.flush()
        os._exit(1)

    def _ticked(self, held: bool) -> None:
        """An ask does not wait for another episode's step."""
        if held:
            self._haste = time.monotonic() + _HASTE
        self._channel.hasty = time.monotonic() < self._haste

    def _interrupt(self, _signal: int, frame: FrameType | None) -> None:
        """Interrupts an import or a step without time left, and blocking compiled code."""
        if not self.blame.called(frame):
            return
        if self._loading:
            raise Stopped
        if verdict := self._watchdog.verdict():
            raise Stopped(verdict)
        if self._watchdog.held and not any(isinstance(run, ScoringRun) for run in self._runs.values()):
            raise Stopped(HOGGED)


def reply_of(record: Record) -> Reply:
    """A reply as the engine sent it."""
    calls = tuple(ToolCall(call["name"], call["arguments"]) for call in record["tool_calls"])
    return Reply(record["text"], record["finish"], record["turn"], calls, record["thinking"], record.get("logprob"))
