"""Serves versions and the base to clients: one ``Answerer`` for each tenant's keys.

To the samplers, a tenant's clients are one more task of the tenant, in the same queues.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import PurePath
from typing import TYPE_CHECKING

from ...errors import AdapterError, MarlaasError, StoreError, WorkerDied
from ...fairness import Payer
from ...rollout import Rollout
from ...store import Store
from ...wire import Answered, Answerer, Chat, Complete, Model, Refusal, Tell
from ..keys import Identity
from .answering import Desk, answer_chat, answer_prompts
from .requests import Limits, Rates
from .versions import PATIENCE, SOON, LoadedVersions, Names, lost, machine_of

if TYPE_CHECKING:
    from ...fleet import Services, WorkerSupervisor


class Serving:
    """All clients of one engine."""

    def __init__(
        self, store: Store, workers: WorkerSupervisor, base: str, per_minute: int = 0, patience: float = PATIENCE
    ) -> None:
        """``base``: its name in the settings.

        ``per_minute``: requests of a key, 0 for any number. ``patience``: seconds that a request waits for workers.
        """
        self.store = store
        self.workers = workers
        self.patience = patience
        self.loaded = LoadedVersions(store.served)
        self.limits = Limits(store, Rates(per_minute))
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
            payer = Payer(tenant, self.store.usage.clients(tenant))
            self._rollouts[tenant] = machine.rollout.of(payer, anew=False)
        return self._rollouts[tenant]


@dataclass(frozen=True)
class _Answerer:
    """Implements ``gateway.Answerer``."""

    serving: Serving
    key: int
    tenant: str

    async def models(self, key: str) -> tuple[Model, ...]:
        with _explained():
            models = self.serving.names(self.tenant).models()
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
                desk = Desk(rollout, lent, named.name)
                if isinstance(request, Chat):
                    return await answer_chat(desk, request, tell)
                return await answer_prompts(desk, request, tell)


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
