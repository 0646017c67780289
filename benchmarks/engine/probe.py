"""The real engine with a stop-watch: how long an event waits in it until what it makes possible is on its way.

Run as ``python -P -m benchmarks.engine.probe HOME OUT``: serves HOME as the product does, and writes OUT as JSON,
milliseconds by kind of event, when it is told to stop. The watch hangs on the borders of the process, where frames
arrive and leave; the product knows nothing of it.
"""

from __future__ import annotations

import json
import sys
from collections import defaultdict
from collections.abc import Iterable
from contextvars import ContextVar
from pathlib import Path
from time import perf_counter
from typing import Any

from marlaas.engine.daemon.main import run
from marlaas.engine.environments.process.child import Child
from marlaas.engine.environments.process.wire import Asked, Ended
from marlaas.engine.environments.protocol import EpisodeOutcome, EpisodeSpec, Unscored
from marlaas.engine.home.paths import Home
from marlaas.engine.train.admission import PolicyGroups
from marlaas.engine.training.advantages import ClosedGroup
from marlaas.engine.training.inputs import TrainGroup
from marlaas.engine.workers import wire
from marlaas.engine.workers.handle import WorkerHandle
from marlaas.plugins.host.channel import Channel, Record
from marlaas.plugins.messages import Answer

TURN, REPLY, GROUP, STEP, VERSION = (
    "ask → sampler",
    "sampled → environment",
    "group complete → trainer",
    "step made → published",
    "published → episodes begin",
)
TRAINING = ("open", "accumulate", "step", "score")


class Watch:
    """When what arrived, and what that made possible left."""

    def __init__(self) -> None:
        self.waits: defaultdict[str, list[float]] = defaultdict(list)
        self.asked: ContextVar[float] = ContextVar("asked", default=0.0)
        """The ask that the running coroutine answers."""
        self.sampled: ContextVar[float] = ContextVar("sampled", default=0.0)
        """The sampled turn that it hands on."""
        self.leaving: list[tuple[str, float]] = []
        """What waits for the end of this turn of the loop, when frames are written."""
        self.ended: dict[int, float] = {}
        """Last end of an episode, by instance."""
        self.complete: dict[int, float] = {}
        """The same by number of the group, once it has closed."""
        self.trainer_free = self.stepped = self.published = 0.0

    def act(self, kind: str, event: float) -> None:
        """Something that ``event`` made possible is being sent."""
        if event:
            self.leaving.append((kind, event))

    def written(self) -> None:
        """A frame is with the kernel."""
        now = perf_counter()
        for kind, event in self.leaving:
            self.waits[kind].append(1000 * (now - event))
        self.leaving.clear()

    def trained(self, groups: Iterable[TrainGroup]) -> float:
        """When the trainer could have had the first of these groups."""
        return max(self.trainer_free, min(self.complete[group.number] for group in groups))

    def answered(self, method: str, event: float) -> None:
        """An answer of a worker arrived at that time."""
        if method in TRAINING:
            self.trainer_free = event
        if method == "step":
            self.stepped = event
        elif method == "load" and self.stepped:
            self.published = event


def attach(watch: Watch) -> None:
    """Hang the watch on the engine's borders."""
    call, flush_calls, receive = WorkerHandle.call, wire.Outbox._flush, WorkerHandle._receive
    asked, ended, send, flush = Child._asked, Child._ended, Child._send, Channel.flush
    arrived: dict[int, float] = {}

    async def watched_call(self: WorkerHandle, method: str, *arguments: Any) -> Any:
        if method == "generate":
            watch.act(TURN, watch.asked.get())
        elif method == "accumulate":
            watch.act(GROUP, watch.trained(arguments[1]))
        elif method == "load":
            watch.act(STEP, watch.stepped)
        value = await call(self, method, *arguments)
        event = arrived.pop(id(value), 0.0)
        watch.answered(method, event)
        if method == "generate":
            watch.sampled.set(event)
        return value

    def watched_receive(self: WorkerHandle, message: wire.Answer | wire.Failed) -> None:
        if isinstance(message, wire.Answer) and message.value is not None:
            arrived[id(message.value)] = perf_counter()
        receive(self, message)

    def watched_ask(self: Child, message: Asked) -> None:
        watch.asked.set(perf_counter())  # the task that answers inherits it
        asked(self, message)

    def watched_send(self: Child, record: Record) -> None:
        if record["op"] == "reply":
            watch.act(REPLY, watch.sampled.get())
        elif record["op"] == "start" and record["split"] == "train":
            watch.act(VERSION, watch.published)
        send(self, record)

    async def watched_play(
        self: Child, environment: str, spec: EpisodeSpec, answer: Answer
    ) -> EpisodeOutcome | Unscored:
        outcome = await play(self, environment, spec, answer)
        if spec.split == "train":
            watch.ended[spec.index] = max(watch.ended.get(spec.index, 0.0), arrived.pop(id(outcome), 0.0))
        return outcome

    def watched_put(self: PolicyGroups, closed: ClosedGroup) -> None:
        watch.complete[closed.group.number] = watch.ended[closed.group.index]
        put(self, closed)

    def watched_end(self: Child, message: Ended) -> None:
        arrived[id(message.outcome)] = perf_counter()
        ended(self, message)

    def flushed_calls(self: wire.Outbox) -> None:
        flush_calls(self)
        watch.written()

    def flushed(self: Channel) -> None:
        flush(self)
        watch.written()

    play, put = Child.play, PolicyGroups.put
    patches: tuple[tuple[type, str, Any], ...] = (
        (WorkerHandle, "call", watched_call),
        (WorkerHandle, "_receive", watched_receive),
        (wire.Outbox, "_flush", flushed_calls),
        (Child, "_asked", watched_ask),
        (Child, "_ended", watched_end),
        (Child, "_send", watched_send),
        (Child, "play", watched_play),
        (PolicyGroups, "put", watched_put),
        (Channel, "flush", flushed),
    )
    for owner, name, replacement in patches:
        setattr(owner, name, replacement)


if __name__ == "__main__":
    stopwatch = Watch()
    attach(stopwatch)
    code = run(Home(Path(sys.argv[1])))
    Path(sys.argv[2]).write_text(json.dumps(stopwatch.waits), encoding="utf-8")
    sys.exit(code)
