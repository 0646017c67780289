"""One copy of the base on each device: the groups of a call are shared among them, their gradients are added up.

Policies with their groups flow in, statistics flow out (``group_pass``), and the gradients are in the policies'. A
policy lives on the first device, its home; the others get its weights for the call and give a gradient back, which are
added in the order of devices: the same sums each time, and the same update as on one device but for the last bits.
Each copy computes in a thread of its own; from one interpreter, so what launches kernels takes turns.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from functools import partial
from time import perf_counter
from typing import Any, TypeVar

import torch

from ..types import Logprobs, Tokens
from .group_pass import Work, add_gradients, sequence_logprobs
from .model import Model
from .out_of_memory import DeviceFull, on
from .policy_memory import PolicyMemory
from .protocol import GroupStats
from .shares import shares, together

R = TypeVar("R")
WORTH = 1024
"""Tokens for each device from which on sharing a call is worth the copies."""


@dataclass(frozen=True)
class Replica:
    """A copy of the base."""

    model: Model[Any]
    device: str
    name: str
    """Of the device, for people."""
    thread: ThreadPoolExecutor | None = None
    """What it computes in; None: the thread that calls."""


class Replicas:
    """The first of them is home. ``make`` loads a model onto a device; ``threads`` is how many cores each may use."""

    def __init__(
        self, make: Callable[[str], Model[Any]], devices: Sequence[str], names: Sequence[str], threads: int
    ) -> None:
        self._all = [Replica(make(devices[0]), devices[0], names[0])]
        for device, name in list(zip(devices, names, strict=True))[1:]:
            thread = ThreadPoolExecutor(1, f"trainer on {name}", initializer=torch.set_num_threads, initargs=(threads,))
            self._all.append(Replica(thread.submit(make, device).result(), device, name, thread))

    @property
    def home(self) -> Replica:
        """Where policies live."""
        return self._all[0]

    def add_gradients(self, work: Work) -> tuple[GroupStats, ...]:
        """As ``group_pass.add_gradients`` does. Raises ``DeviceFull`` where a device has no memory for its part.

        After an error a policy's gradient is in doubt.
        """
        if len(self._all) == 1:
            return on(self.home.name, partial(add_gradients, self.home.model, work))
        begun = perf_counter()
        parts = shares([groups for _, groups in work], len(self._all), WORTH)
        policies = [memory for memory, _ in work]
        copies = [policies, *([policy.on(replica.device) for policy in policies] for replica in self._all[1:])]
        passes = [
            partial(on, replica.name, partial(add_gradients, replica.model, list(zip(own, part, strict=True))))
            for replica, own, part in zip(self._all, copies, parts, strict=True)
        ]
        stats = self._at_once(passes)
        for others in copies[1:]:
            for policy, other in zip(policies, others, strict=True):
                policy.take(other)
        seconds = perf_counter() - begun
        tokens = [max(1, sum(each[number].tokens for each in stats)) for number in range(len(work))]
        return tuple(
            together(
                groups,
                [(part[number], each[number]) for part, each in zip(parts, stats, strict=True)],
                seconds * tokens[number] / sum(tokens),
            )
            for number, (_, groups) in enumerate(work)
        )

    def logprobs(self, memory: PolicyMemory, tokens: Tokens, start: int, temperature: float) -> Logprobs:
        """As ``group_pass.sequence_logprobs``, at home; raises ``DeviceFull``, too."""
        home = self.home
        return on(home.name, partial(sequence_logprobs, home.model, memory, tokens, start, temperature))

    def unmount(self) -> None:
        """Forget which policies are mounted."""
        for replica in self._all:
            replica.model.unmount()

    def shrink(self) -> bool:
        """Halve what the newest passes might take, on every device; False where all are smallest."""
        return any([replica.model.shrink() for replica in self._all])

    def shutdown(self) -> None:
        """End the threads."""
        for replica in self._all:
            if replica.thread is not None:
                replica.thread.shutdown()

    def _at_once(self, passes: Sequence[Callable[[], R]]) -> list[R]:
        """Each on its replica. All have ended when one error is raised: first that a device is full."""
        threads = [replica.thread for replica in self._all if replica.thread is not None]
        futures = [thread.submit(one) for thread, one in zip(threads, passes[1:], strict=True)]
        own: Future[R] = Future()
        try:
            own.set_result(passes[0]())
        except Exception as error:
            own.set_exception(error)
        wait(futures)
        failures = [failure for future in (own, *futures) if (failure := future.exception()) is not None]
        for failure in sorted(failures, key=lambda failure: not isinstance(failure, DeviceFull)):
            raise failure
        return [future.result() for future in (own, *futures)]
