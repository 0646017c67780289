"""An event loop under which an engine with real workers does the same in every run, however fast each of them is.

What workers send is held back until the engine has nothing left to do and no worker owes an answer; then all of it
arrives in one turn, in a fixed order. Clocks stand still meanwhile: time continues by a tick with each such round, and
to the next timer if nobody has anything else to do. So what happens together does not depend on who was faster.

Knows nothing of what the messages say, except which of them answers what.
"""

from __future__ import annotations

import asyncio
import selectors
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from typing import Any
from unittest.mock import patch

from marlaas.engine.environments.pool import ProcessPool
from marlaas.engine.environments.process import child
from marlaas.engine.environments.process.child import Child
from marlaas.engine.environments.service import EnvironmentService
from marlaas.engine.machine.trainers import Served, SharedTrainer
from marlaas.engine.machine.workers import handle, wire
from marlaas.engine.machine.workers.handle import WorkerHandle
from marlaas.engine.train import publishing
from marlaas.engine.trainer.protocol import GroupStats, StepResult
from marlaas.plugins.host.channel import Record

TICK = 0.001
"""Seconds by which a round moves the clocks."""
LOOK = 0.05
"""Seconds that the real world gets to say something before the clocks go on to the next timer."""
PATIENCE = 1.0
"""Seconds for which one look waits for workers that owe something."""
NEVER = 1e9
"""Seconds: between two looks at whether a worker is alive, which would come at any moment."""

PASS, TOKEN = 0.005, 1e-5
"""Seconds that a call of the trainer counts as, and each token of it: they decide whose turn is next, and who shares a
pass."""
REQUESTS = ("start", "facts", "score", "rank")
"""What an environment's process answers, by the number of an episode."""

Order = tuple[str, int, int]


class Inline(ThreadPoolExecutor):
    """Does at once what would go to a thread, so that it is over at the same moment in every run."""

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        """See ``Executor``."""
        done: Future[Any] = Future()
        try:
            done.set_result(fn(*args, **kwargs))
        except Exception as error:
            done.set_exception(error)
        return done


class _Selector(selectors.DefaultSelector):
    """Asks the loop before it looks at sockets."""

    loop: LockstepLoop

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if not self.loop.stepping:
            return super().select(timeout)
        if timeout == 0:  # the engine is busy, and hears nothing until it is done
            return []
        if self.loop.owed.total():
            return super().select(PATIENCE)
        if self.loop.held:
            self.loop.deliver()
            return []
        found = super().select(LOOK)
        if not found and timeout is not None:
            self.loop.now += timeout + TICK
        return found


class LockstepLoop(asyncio.SelectorEventLoop):
    """The loop; an ordinary one outside of ``lockstep``."""

    def __init__(self) -> None:
        selector = _Selector()
        selector.loop = self
        self.stepping = False
        self.now = 0.0
        """The clock while it stands still."""
        self.owed: Counter[tuple[int, int]] = Counter()
        """Answers that are in progress, by connection and number."""
        self.held: list[tuple[Order, Callable[[], None]]] = []
        self._ahead = 0.0
        super().__init__(selector)

    def time(self) -> float:
        """Seconds, which never go back."""
        return self.now if self.stepping else super().time() + self._ahead

    def deliver(self) -> None:
        """Let all arrive that is held back."""
        self.now += TICK
        for _, arrive in sorted(self.held, key=lambda one: one[0]):
            self.call_soon(arrive)
        self.held.clear()

    @contextmanager
    def lockstep(self) -> Iterator[None]:
        """Every round waits for all, for as long as the block takes; no call may be in progress when it begins."""
        self.now = self.time()
        self.stepping = True
        self.set_default_executor(Inline())
        try:
            yield
        finally:
            self.stepping = False
            self._ahead = max(0.0, self.now - super().time())
            self.set_default_executor(ThreadPoolExecutor())
            self.deliver()


@contextmanager
def attached(loop: LockstepLoop) -> Iterator[None]:
    """Hang the loop on the borders of the process, where messages leave and arrive; before workers start."""
    send, receive = wire.Outbox.send, WorkerHandle._receive
    send_record, receive_record = Child._send, Child.receive
    open_trainer, settle = SharedTrainer.__init__, SharedTrainer._settle
    numbers: dict[int, int] = {}
    asks: dict[tuple[int, int], int] = {}

    def number(of: object) -> int:
        """Children in the order in which they first spoke."""
        return numbers.setdefault(id(of), len(numbers))

    def sending(self: wire.Outbox, message: wire.Message, haste: bool = True) -> None:
        if loop.stepping and isinstance(message, wire.Call) and message.id is not None:
            loop.owed[id(self), message.id] += 1
        send(self, message, haste)

    def receiving(self: WorkerHandle, message: wire.Answer | wire.Failed) -> None:
        key = id(self._outbox), message.id
        if key not in loop.owed:  # to a call from before
            return receive(self, message)
        del loop.owed[key]
        loop.held.append(((f"worker {self.name}", 0, message.id), lambda: receive(self, message)))

    def sending_record(self: Child, record: Record) -> None:
        if record["op"] == "reply":
            episode = asks.pop((number(self), record["id"]), None)
        else:
            episode = record["episode"] if record["op"] in REQUESTS else None
        if loop.stepping and episode is not None:
            loop.owed[number(self), episode] += 1
        send_record(self, record)

    def receiving_record(self: Child, record: Record) -> None:
        episode = record.get("episode")
        if not loop.stepping or not isinstance(episode, int):
            return receive_record(self, record)
        if record["op"] == "ask":
            asks[number(self), record["id"]] = episode
        if record["op"] != "final":
            del loop.owed[number(self), episode]
        loop.held.append((("environment", number(self), episode), lambda: receive_record(self, record)))

    def opening(self: SharedTrainer, *arguments: Any, **named: Any) -> None:
        open_trainer(self, *arguments, **named | {"now": loop.time})

    def settling(self: SharedTrainer, calls: Served, results: Sequence[Any], elapsed: float) -> None:
        settle(self, calls, [timed(result, len(results)) for result in results], PASS)

    async def unwatched(self: EnvironmentService) -> None:
        """Nobody changes a plugin; who looks whether somebody did would look at any moment."""

    def unlooked(self: ProcessPool) -> None:
        """One process of the plugin is enough; who looks whether more are needed would look once a second."""

    with ExitStack() as stack:
        for owner, name, replacement in (
            (wire.Outbox, "send", sending),
            (WorkerHandle, "_receive", receiving),
            (Child, "_send", sending_record),
            (Child, "receive", receiving_record),
            (SharedTrainer, "__init__", opening),
            (SharedTrainer, "_settle", settling),
            (EnvironmentService, "_watch", unwatched),
            (ProcessPool, "_look_later", unlooked),
            (publishing, "monotonic", loop.time),
            (handle, "BEAT", NEVER),
            (child, "BEAT", NEVER),
        ):
            stack.enter_context(patch.object(owner, name, replacement))
        yield


def timed(result: Any, shared: int) -> Any:
    """What a trainer returned, with seconds that are the same in every run; ``shared``: results of the same call."""
    if isinstance(result, GroupStats):
        return replace(result, seconds=PASS / shared + TOKEN * result.tokens, step=timed(result.step, 1))
    return replace(result, seconds=PASS) if isinstance(result, StepResult) else result
