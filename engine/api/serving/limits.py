"""How much clients may ask at once, and when they are to come again: nothing piles up in the engine."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from ...gateway import Refusal
from ...store import Store
from .rates import Rates

MOST_OF_KEY = 128
"""Requests of one key that are under way or wait for their turn."""
MOST = 1024
"""Requests of all keys."""
SOON = 1.0
"""Seconds after which another try may go through."""
DAY = 86_400


@dataclass(eq=False)
class Limits:
    """Counts requests under way and requests a minute, and looks at tenants' quotas."""

    store: Store
    rates: Rates = field(default_factory=lambda: Rates(0))
    most_of_key: int = MOST_OF_KEY
    most: int = MOST
    _of_key: Counter[int] = field(default_factory=Counter)
    _all: int = 0

    @property
    def under_way(self) -> int:
        """Requests that are being answered."""
        return self._all

    @contextmanager
    def admitted(self, key: int, tenant: str) -> Iterator[None]:
        """A request of a key, by its number, is answered while the block runs. Raises ``Refusal`` for one too many,
        and ``StoreError``."""
        if self._of_key[key] >= self.most_of_key:
            message = f"This key has {self.most_of_key} requests under way; more are answered once some have ended."
            raise Refusal(429, "too_many_requests", message, retry_after=SOON)
        if self._all >= self.most:
            message = f"The engine answers {self.most} requests at the moment, as many as it can. Try again."
            raise Refusal(429, "too_many_requests", message, retry_after=SOON)
        self._check_quota(tenant)
        if seconds := self.rates.wait(key):
            message = "This key has made as many requests in a minute as it may; the next one is possible soon."
            raise Refusal(429, "rate_limit", message, retry_after=seconds)
        self._of_key[key] += 1
        self._all += 1
        try:
            yield
        finally:
            self._all -= 1
            self._of_key[key] -= 1
            if not self._of_key[key]:
                del self._of_key[key]

    def _check_quota(self, tenant: str) -> None:
        quota = self.store.tenants.get(tenant).tokens_per_day
        if quota and self.store.usage.tokens_today().get(tenant, 0) >= quota:
            left = DAY - time.time() % DAY
            message = f"Tenant {tenant} has used its quota of {quota:,} tokens a day; the next day begins at 0:00 UTC."
            raise Refusal(429, "quota_exceeded", message, retry_after=left)
