"""Serves versions and the base: one ``Answerer`` per tenant.

To samplers, a tenant's clients are one more task.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import PurePath
from typing import TYPE_CHECKING

from ...errors import AdapterError, MarlaasError, StoreError, WorkerDied
from ...fairness.line import Payer
from ...rollout.episodes import Rollout
from ...store.store import Store
from ...wire import Answered, Answerer, Chat, Complete, Model, Refusal, Tell
from ..keys import Identity
from .answering import Desk
from .versions import PATIENCE, SOON, LoadedVersions, Names, lost, machine_of

if TYPE_CHECKING:
    from ...machine.services import Services
    from ...machine.supervisor import WorkerSupervisor


MOST_OF_KEY = 128
"""In progress or waiting."""
MOST = 1024
AGAIN = 1.0
"""Seconds to another try."""
DAY = 86_400


MINUTE = 60.0


@dataclass(eq=False)
class Limits:
    """Counts requests and checks quotas."""

    store: Store
    per_minute: int = 0
    """Of a key; 0: any number. A minute's worth may come at once."""
    most_of_key: int = MOST_OF_KEY
    most: int = MOST
    clock: Callable[[], float] = time.monotonic
    _of_key: Counter[int] = field(default_factory=Counter)
    _empty: dict[int, float] = field(default_factory=dict)
    """By key, when its bucket is empty again: generic cell rate algorithm (ITU-T I.371)."""

    @property
    def under_way(self) -> int:
        return self._of_key.total()

    @contextmanager
    def admitted(self, key: int, tenant: str) -> Iterator[None]:
        """Counts while the block runs. Raises ``Refusal`` for one too many, and ``StoreError``."""
        self._check_number(key)
        self._check_quota(tenant)
        self._check_rate(key)
        self._of_key[key] += 1
        try:
            yield
        finally:
            self._of_key[key] -= 1
            self._of_key += Counter()  # drops keys without a request

    def _check_number(self, key: int) -> None:
        message = ""
        if self._of_key[key] >= self.most_of_key:
            message = f"This key has {self.most_of_key} requests under way; more are answered once some have ended."
        elif self.under_way >= self.most:
            message = f"The engine answers {self.most} requests at the moment, as many as it can. Try again."
        if message:
            raise Refusal(429, "too_many_requests", message, retry_after=AGAIN)

    def _check_quota(self, tenant: str) -> None:
        quota = self.store.tenants.get(tenant).tokens_per_day
        if quota and self.store.tenants.tokens_today().get(tenant, 0) >= quota:
            left = DAY - time.time() % DAY
            message = f"Tenant {tenant} has used its quota of {quota:,} tokens a day; the next day begins at 0:00 UTC."
            raise Refusal(429, "quota_exceeded", message, retry_after=left)

    def _check_rate(self, key: int) -> None:
        if self.per_minute:
            now = self.clock()
            empty = max(self._empty.get(key, now), now) + MINUTE / self.per_minute
            late = empty - now - MINUTE
            if late > 1e-9:  # rounding error of a whole minute
                message = "This key has made as many requests in a minute as it may; the next one is possible soon."
                raise Refusal(429, "rate_limit", message, retry_after=late)
            self._empty[key] = empty


class Serving:
    """All clients of one engine."""

    def __init__(
        self, store: Store, workers: WorkerSupervisor, base: str, per_minute: int = 0, patience: float = PATIENCE
    ) -> None:
        """``base``: its name in the settings. ``per_minute``: of a key, 0: any number. ``patience``: seconds for
        workers."""
        self.store = store
        self.workers = workers
        self.patience = patience
        self.loaded = LoadedVersions(store.served)
        self.limits = Limits(store, per_minute)
        self.base = PurePath(base).name if base.startswith((".", "/", "~")) else base
        self._machine: Services | None = None
        self._rollouts: dict[str, Rollout] = {}

    @property
    def busy(self) -> bool:
        return self.limits.under_way > 0

    def answerer(self, identity: Identity) -> Answerer:
        return _Answerer(self, identity.key, identity.tenant)

    def names(self, tenant: str) -> Names:
        return Names(self.store.served, tenant, self.base)

    def rollout(self, machine: Services, tenant: str) -> Rollout:
        if machine is not self._machine:
            self._machine, self._rollouts = machine, {}
        if tenant not in self._rollouts:
            payer = Payer(tenant, self.store.tenants.clients(tenant))
            self._rollouts[tenant] = machine.rollout.of(payer, anew=False)
        return self._rollouts[tenant]


@dataclass(frozen=True)
class _Answerer:
    serving: Serving
    key: int
    tenant: str

    def reject(self, sentence: str) -> None:
        """The client has heard it."""

    async def models(self, key: str, name: str = "") -> tuple[Model, ...]:
        with _explained():
            names = self.serving.names(self.tenant)
            models = (names.model(name),) if name else names.models()
            workers = self.serving.workers
            if workers.yielding is not None or not workers.ready:
                return models
            endpoints = (await workers.services()).endpoints.values()
            context = min((endpoint.context for endpoint in endpoints), default=0)
            return tuple(Model(one.id, one.parent, one.created, one.owner, context) for one in models)

    async def answer(self, request: Chat | Complete, tell: Tell) -> Answered:
        serving = self.serving
        with _explained(), serving.limits.admitted(self.key, self.tenant):
            named = serving.names(self.tenant).find(request.model)
            machine = await machine_of(serving.workers, serving.patience)
            async with serving.loaded.lent(machine, named) as lent:
                rollout = serving.rollout(machine, self.tenant)
                return await Desk(rollout, lent, named.name).answer(request, tell)


@contextmanager
def _explained() -> Iterator[None]:
    try:
        yield
    except WorkerDied as error:
        raise lost() from error
    except StoreError as error:
        raise Refusal(503, "engine_busy", str(error), retry_after=SOON) from error
    except AdapterError as error:
        raise Refusal(404, "model_not_found", f"The version cannot be served: {error}", "model") from error
    except ValueError as error:
        raise Refusal(400, "invalid_request", str(error)) from error
    except MarlaasError as error:
        raise Refusal(500, "engine_error", str(error)) from error
