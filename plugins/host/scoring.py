"""One scoring, or one ranking, in a process that does nothing else: from the engine's request to its answer.

Exactly one record is sent, whatever the function does. A plain ``def`` runs in the main thread, because the signals
with which graders bound their own time work only there. It blocks the loop meanwhile; when its time is up, it is
interrupted at its line. Its time is its own, as an episode's is: see ``clock``. The answer says how much of it was
computed, and how much waited for others: the engine cannot see that, as it hears late of answers on a busy machine.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable
from typing import Any, Protocol

from ..environment import Environment
from ..json_values import row
from ..rewards import Skip
from ..scoring import Member, ranks_of, score_of
from .blame import Blame
from .channel import Record
from .clock import Clock
from .limits import full
from .meter import Usage, read_process, spent_between
from .paying import may_pay
from .records import read_transcript
from .steps import charged
from .threads import Stopped


class Host(Protocol):
    """What a scoring asks of the process around it."""

    blame: Blame

    def scored(self, run: ScoringRun, record: Record) -> None:
        """Send the answer to the engine."""


class ScoringRun:
    """One scoring under way."""

    def __init__(self, host: Host, request: Record, environment: Environment) -> None:
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
    def busy(self) -> bool:
        """Whether threads run for it."""
        return self._usage.threads > 0

    @property
    def function(self) -> Callable[..., Any]:
        """The author's function that is to be called."""
        found = self.environment.ranker if self._request["op"] == "rank" else self.environment.scorer
        if found is None:
            raise LookupError(f"{self.environment.name} has no {self._what} function")
        return found

    async def _run(self) -> None:
        began = read_process()
        try:
            answer = await (self._ranked() if self._request["op"] == "rank" else self._scored())
        except Skip:
            answer = {"status": "skip"}
        except BaseException as error:  # SystemExit too: a plugin does not end its process
            answer = self._failed(error)
            if isinstance(error, MemoryError) and full():
                answer["full"] = True
        self._clock.stop()
        ended = read_process()
        if "status" in answer:
            answer |= {"op": "end", "seconds": ended.wall - began.wall}
        computed, waited = spent_between(began, ended)
        spent = {"computed": computed, "waited": waited}
        self._host.scored(self, answer | {"episode": self.number, "spent": spent})

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
