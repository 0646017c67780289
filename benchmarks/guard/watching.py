"""Counts while a block runs: Python calls of our code, SQL statements, frames and bytes, operations of torch, and
objects that refer to each other in a ring, which stay until Python looks for such.

What is counted is the same on every processor. Calls are shown apart by package. Left out is what depends on how bytes
were cut on their way in, and comprehensions, which are calls in some versions of Python only.
"""

from __future__ import annotations

import gc
import os
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import CodeType, FrameType
from typing import Any
from unittest.mock import patch

from torch.utils._python_dispatch import TorchDispatchMode

from marlaas.engine.environments.process.child import Child
from marlaas.engine.environments.process.wire import Asked, Ended
from marlaas.engine.machine.workers import wire
from marlaas.engine.machine.workers.handle import WorkerHandle
from marlaas.engine.store.store import Store
from marlaas.plugins.host.channel import Channel

from .. import ROOT

INLINED = ("<listcomp>", "<dictcomp>", "<setcomp>")
BY_CHANCE = ("WorkerHandle._listen", "read", "Channel.data_received", "Channel._charge", "Outbox._flush")
"""Functions that run for each piece that arrives, and pieces are cut by chance. The last has nothing to send where its
timer was late."""
GENERATED = ("__init__", "__eq__", "__hash__", "__setattr__")
"""What ``dataclass`` writes; its code is in no file."""


@dataclass
class Seen:
    """What was counted, by name."""

    calls: Counter[CodeType] = field(default_factory=Counter)
    statements: Counter[str] = field(default_factory=Counter)
    wire: Counter[str] = field(default_factory=Counter)
    rings: int = 0
    """Objects that nothing but a look for rings has freed."""

    def counts(self) -> dict[str, int]:
        """All of it as one table."""
        found: Counter[str] = Counter()
        for code, count in self.calls.items():
            if (package := package_of(code)) is not None:
                found[f"Python calls, {package}"] += count
        for kind, count in self.statements.items():
            found[f"SQL, {kind}"] += count
        found["objects left in rings"] = self.rings
        return dict(found + self.wire)


def package_of(code: CodeType) -> str | None:
    """The package that a function is counted for; None for one that is not ours, or that runs as often as chance has
    it."""
    if code.co_name in INLINED:
        return None
    if code.co_filename == "<string>":
        return "dataclasses" if code.co_name in GENERATED else None
    path = Path(code.co_filename)
    if not path.is_relative_to(ROOT) or code.co_qualname in BY_CHANCE:
        return None
    parts = path.relative_to(ROOT).parts
    return "/".join(parts[:2] if len(parts) > 2 else parts[:1]) if parts[0] in ("engine", "plugins") else None


def kind_of(statement: str) -> str:
    """The verb of an SQL statement."""
    return statement.split(None, 1)[0].upper()


@contextmanager
def python_calls(seen: Seen) -> Iterator[None]:
    """Count the calls of this thread; a coroutine that continues is one more call."""
    calls = seen.calls

    def note(frame: FrameType, event: str, argument: object) -> None:
        if event == "call":
            calls[frame.f_code] += 1

    sys.setprofile(note)
    try:
        yield
    finally:
        sys.setprofile(None)


@contextmanager
def rings(seen: Seen) -> Iterator[None]:
    """Count the objects that are left in rings when the block ends: such a look stops the engine for up to a second."""
    gc.collect()
    gc.disable()
    try:
        yield
        seen.rings += gc.collect()
    finally:
        gc.enable()


@contextmanager
def statements(seen: Seen, store: Store) -> Iterator[None]:
    """Count the SQL statements of the engine's connection, and each row of those that write many."""
    connection = store._database.conn

    def note(statement: str) -> None:
        seen.statements[kind_of(statement)] += 1

    connection.set_trace_callback(note)
    try:
        yield
    finally:
        connection.set_trace_callback(None)


@contextmanager
def frames(seen: Seen, folder: Path) -> Iterator[None]:
    """Count frames and bytes on their way out, and messages and their bytes on their way in.

    ``folder``: its name is left out wherever it occurs, because it is longer on some machines.
    """
    name = os.fsencode(folder)
    pack, flush, receive = wire.pack, Channel.flush, WorkerHandle._receive
    asked, ended = Child._asked, Child._ended
    count = seen.wire

    def packing(*messages: wire.Message) -> bytes:
        frame = pack(*messages)
        count["frames to workers"] += 1
        count["messages to workers"] += len(messages)
        count["bytes to workers"] += len(frame.replace(name, b""))
        return frame

    def flushing(self: Channel) -> None:
        if self._outgoing:
            count["frames to environments"] += 1
            count["messages to environments"] += len(self._outgoing)
            count["bytes to environments"] += sum(map(len, self._outgoing))
        flush(self)

    def receiving(self: WorkerHandle, message: wire.Answer | wire.Failed) -> None:
        count["answers of workers"] += 1
        count["bytes of their values"] += len(pack(message).replace(name, b""))
        receive(self, message)

    def asking(self: Child, message: Asked) -> None:
        count["messages of environments"] += 1
        asked(self, message)

    def ending(self: Child, message: Ended) -> None:
        count["messages of environments"] += 1
        ended(self, message)

    with ExitStack() as stack:
        for owner, function, replacement in (
            (wire, "pack", packing),
            (Channel, "flush", flushing),
            (WorkerHandle, "_receive", receiving),
            (Child, "_asked", asking),
            (Child, "_ended", ending),
        ):
            stack.enter_context(patch.object(owner, function, replacement))
        yield


class Operations(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Counts operations below autograd: what torch's dispatcher hands to a kernel, or what is a view of it."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.counts: Counter[str] = Counter()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.counts["views" if func.is_view else "operations"] += 1
        return func(*args, **(kwargs or {}))


def operations(run: Callable[[], object]) -> Mapping[str, int]:
    """The operations of one run, and the views next to them, which compute nothing."""
    counted = Operations()
    with counted:
        run()
    return counted.counts
