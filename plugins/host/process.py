"""The host of one plugin version: imports it, and runs or scores episodes.

In: ``start reply endpoint calls cancel facts score rank``; out: ``hello`` or ``broken``, then ``ask endpoint final end
facts ranked``. A scoring process has one request at a time, so its death has a known cause.

Coroutine episodes share one loop: authors' locks belong to it, and authors rely on exclusive execution between awaits.
"""

from __future__ import annotations

import asyncio
import dataclasses
import json
import os
import signal
import socket
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any

from ..data import Source, digest_of, row_at, rows_of
from ..environment import Environment
from ..messages import Ask, Endpoint, Reply, ToolCall, within_limits
from .blame import Blame
from .channel import Channel, Record, message_record
from .loading import load_all
from .meter import Watchdog, charge_tasks
from .runner import Run, Running, ScoringRun
from .threads import HELD, EpisodeThreads, Instances, Stopped, left_behind

if TYPE_CHECKING:
    from ..programs.forwarder import Forwarder

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
        self._instances = Instances()
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
        await self._instances.close()

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

    async def player(self, environment: Environment) -> Callable[..., Any]:
        return await self._instances.player(environment)

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
            raise Stopped(HELD)


def reply_of(record: Record) -> Reply:
    """A reply as the engine sent it."""
    calls = tuple(ToolCall(call["name"], call["arguments"]) for call in record["tool_calls"])
    return Reply(record["text"], record["finish"], record["turn"], calls, record["thinking"], record.get("logprob"))
