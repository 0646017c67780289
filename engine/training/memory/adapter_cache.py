"""The adapter cache: which policies are in the device's memory, and which are paged out.

``use`` pages in the policies that are needed now; the least recently used are paged out for them. Knows nothing of
models, groups or files.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Collection

from ...errors import AdapterError
from ...faults import Point, reach
from .host_copy import to_device, to_host
from .pages import Pages
from .policy_memory import PolicyMemory
from .training_state import TrainingState

log = logging.getLogger(__name__)


class AdapterCache:
    """Holds at most ``slots`` policies in at most ``room`` bytes of ``device``, where 0 is no limit.

    Policies that are used together are held together, even beyond the limits: check first that they ``fit``. One thread
    computes with policies and makes all calls but ``look``, which may be another thread's.
    """

    def __init__(self, pages: Pages, slots: int = 0, room: int = 0, device: str = "cpu") -> None:
        self._pages, self._slots, self._room, self._device = pages, slots, room, device
        self._held: dict[str, PolicyMemory] = {}
        """Policies in memory, the least recently used first."""
        self._sizes: dict[str, int] = {}
        """Bytes of each open policy."""
        self._paging = threading.Lock()

    def add(self, policy: str, memory: PolicyMemory) -> None:
        """Add a policy, in place of an older one of that name."""
        with self._paging:
            self._forget(policy)
            self._held[policy], self._sizes[policy] = memory, memory.size
            self._make_room((policy,))

    def use(self, *policies: str) -> tuple[PolicyMemory, ...]:
        """These policies, in memory until the next call.

        Raises ``AdapterError`` where one is not open, or cannot be read back after it was paged out; it is then closed.
        """
        with self._paging:
            for policy in policies:
                self._held[policy] = self._held.pop(policy) if policy in self._held else self._wake(policy)
            self._make_room(policies)
            return tuple(self._held[policy] for policy in policies)

    def look(self, policy: str) -> TrainingState:
        """A policy's state; on a processor its arrays are views of its memory. It must not be in use.

        Raises ``AdapterError`` as ``use`` does.
        """
        with self._paging:
            if policy in self._held:
                return to_host(self._held[policy])
            if policy not in self._pages:
                raise _not_open(policy)
            return self._pages.look(policy)

    def fit(self, policies: Collection[str]) -> bool:
        """Whether all of them may be in memory at the same time; a single one always may."""
        size = sum(self._sizes.get(policy, 0) for policy in policies)
        within = (not self._slots or len(policies) <= self._slots) and (not self._room or size <= self._room)
        return within or len(policies) <= 1

    def drop(self, policy: str) -> None:
        """Forget a policy; unknown names are fine."""
        with self._paging:
            self._forget(policy)

    def _forget(self, policy: str) -> None:
        self._held.pop(policy, None)
        self._sizes.pop(policy, None)
        self._pages.drop(policy)

    def _wake(self, policy: str) -> PolicyMemory:
        if policy not in self._pages:
            raise _not_open(policy)
        try:
            return self._page_in(policy)
        except AdapterError:
            self._forget(policy)
            raise

    def _make_room(self, needed: Collection[str]) -> None:
        """Page out the least recently used policies; if the disk refuses, they stay in memory, so that none is lost."""
        for policy in tuple(self._held):
            if self.fit(self._held):
                return
            if policy in needed:
                continue
            try:
                self._page_out(policy, self._held[policy])
            except OSError as error:
                log.warning("Policy %s cannot be paged out and stays in memory: %s.", policy, error.strerror)
                return
            del self._held[policy]

    def _page_in(self, policy: str) -> PolicyMemory:
        state = self._pages.take(policy)
        try:
            memory = to_device(state, self._device)
        except RuntimeError:  # the device has no memory left
            self._pages.put(policy, state)
            raise
        reach(Point.PAGE_IN)
        return memory

    def _page_out(self, policy: str, memory: PolicyMemory) -> None:
        self._pages.put(policy, to_host(memory))
        reach(Point.PAGE_OUT)


def _not_open(policy: str) -> AdapterError:
    return AdapterError(f"Policy {policy} is not open in this trainer.")
