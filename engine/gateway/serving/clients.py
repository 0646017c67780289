"""Serves tenants' versions and the base to clients: one ``Answerer`` per tenant.

To samplers, a tenant's clients are one more task.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter, OrderedDict
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import PurePath
from typing import TYPE_CHECKING

from ...errors import AdapterError, ConfigError, MarlaasError, StoreError, WorkerDied
from ...fairness.line import Payer
from ...queue.submission.references import choose_at
from ...rollout.episodes import Rollout
from ...rollout.slots import Replicas, SamplerEndpoint
from ...spec.task import BASE, ONLY
from ...spec.validation import nearest
from ...store.rows import VersionRow
from ...store.store import Store
from ...store.tasks import ServedTable
from ...wire import Answered, Answerer, Chat, Complete, Model, Refusal, Tell
from ..keys import Identity
from .answering import Desk

if TYPE_CHECKING:
    from ...machine.services import Services
    from ...machine.supervisor import WorkerSupervisor


# The base, a version of the tenant's tasks, or the tenant's own name.
#
# Reads only rows of the key's tenant.

NEWEST = "newest"
LONGEST_NUMBER = 18
LONGEST = 500
LOOKED = 1000
SHOWN = 80
LISTS = "GET /v1/models lists what there is."


@dataclass(frozen=True)
class Named:
    """The meaning of a name."""

    name: str
    """``17@12``, ``17/player@12``, or the base's."""
    version: VersionRow | None = None
    """None: the base."""


@dataclass(frozen=True)
class Names:
    """One tenant's valid names."""

    table: ServedTable
    tenant: str
    base: str

    def find(self, said: str) -> Named:
        """Raises ``Refusal`` with the tenant's nearest name, and ``StoreError``."""
        if said in (self.base, BASE):
            return Named(self.base)
        for base in (self.base, BASE):  # as some clients write it: BASE:ADAPTER
            said = said.removeprefix(f"{base}:")
        if not said.isprintable() or len(said) > LONGEST:
            raise self._unknown(said)
        version, given = self.table.named(self.tenant, said)
        if given and version is None:
            raise self._unknown(said, "The version of that name is not on the disk any more.")
        if version is None:
            try:
                version = choose_at(self.table.versions(self.tenant, _task(said)), said)
            except ConfigError as error:  # several match
                raise self._unknown(said, str(error)) from None
            except MarlaasError:
                raise self._unknown(said) from None
        return Named(reference(version), version)

    def models(self) -> tuple[Model, ...]:
        rows = self.table.versions(self.tenant)
        by_id = {row.id: row for row in rows}
        models = [self._model(words, row) for words, row in _of_policies(rows)]
        names = self.table.names(self.tenant).items()
        models += [self._model(name, by_id[version]) for name, version in names if version in by_id]
        return (Model(self.base, owner="marlaas"), *models)

    def model(self, said: str) -> Model:
        """Raises as ``find``."""
        version = self.find(said).version
        return Model(said, owner="marlaas") if version is None else self._model(said, version)

    def _model(self, name: str, row: VersionRow) -> Model:
        return Model(name, self.base, int(row.created), self.tenant)

    def _unknown(self, said: str, why: str = "") -> Refusal:
        known = [model.id for model in self.models()] + [reference(row) for row in self.table.versions(self.tenant)]
        near = nearest(said[:SHOWN], known[:LOOKED])
        hint = f"{near} {LISTS}" if near.startswith("Did you mean") else LISTS
        shown = said if len(said) <= SHOWN else f"{said[:SHOWN]}…"
        message = " ".join(part for part in (f"There is no model {shown!r}.", why, hint) if part)
        return Refusal(404, "model_not_found", message, "model")


def reference(row: VersionRow) -> str:
    """17@12, or 17/player@12."""
    return f"{_owner(row)}@{row.number}"


def _owner(row: VersionRow) -> str:
    return str(row.task) if row.policy == ONLY else f"{row.task}/{row.policy}"


def _of_policies(rows: Iterable[VersionRow]) -> list[tuple[str, VersionRow]]:
    first: dict[tuple[str, str], VersionRow] = {}
    for row in rows:  # the newest first
        for word in (NEWEST, "best") if "best" in row.label else (NEWEST,):
            first.setdefault((_owner(row), word), row)
    keys = [(owner, word) for owner in dict.fromkeys(owner for owner, _ in first) for word in ("best", NEWEST)]
    return [(f"{owner}@{word}", first[owner, word]) for owner, word in keys if (owner, word) in first]


def _task(said: str) -> int | None:
    word = said.partition("@")[0].partition("/")[0]
    return int(word) if word.isascii() and word.isdigit() and len(word) <= LONGEST_NUMBER else None


PATIENCE = 20.0
"""Seconds for starting workers."""
SOON = 5.0
"""Seconds until starting workers may be ready."""
LONGEST_WAIT = 3600.0
"""Seconds."""


async def machine_of(workers: WorkerSupervisor, patience: float) -> Services:
    """Raises ``Refusal`` while the engine yields the machine, or after ``patience`` seconds."""
    yielding = workers.yielding
    if yielding is not None and yielding.holds:
        left = SOON if yielding.until is None else yielding.until - time.time()
        message = "The engine has given the machine back to people, and has no workers until they are done."
        raise Refusal(503, "engine_yields", message, retry_after=min(max(1.0, left), LONGEST_WAIT))
    if yielding is not None:
        workers.wake()
    try:
        async with asyncio.timeout(patience):
            return await workers.services()
    except TimeoutError:
        raise Refusal(503, "engine_starting", "The engine's workers are starting.", retry_after=SOON) from None


# Least recently used versions go first, never those in use. New workers begin with none.

MOST_VERSIONS = 8
"""Besides the tasks' versions; each needs about as much memory."""
ROOM_SOON = 2.0
"""Seconds until a version may find room."""


@dataclass(eq=False)
class Held:
    """A version at the samplers."""

    name: str
    """Its checksum ties it to the bytes."""
    replicas: Replicas
    users: int = 0
    loading: asyncio.Task[None] = field(init=False)


@dataclass(eq=False)
class LoadedVersions:
    """For clients of all tenants."""

    table: ServedTable
    most: int = MOST_VERSIONS
    _machine: Services | None = None
    _held: OrderedDict[str, Held] = field(default_factory=OrderedDict)
    """Least recently used first."""
    _lock: asyncio.Lock = field(default_factory=asyncio.Lock)

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(self._held)

    @asynccontextmanager
    async def lent(self, machine: Services, named: Named) -> AsyncIterator[Held]:
        """The samplers hold it while the block runs.

        Raises ``Refusal`` if all are in use; ``AdapterError`` for a missing or damaged file; what workers raise.
        """
        version = named.version
        key = f"clients/{named.name}-{version.checksum}" if version else "clients/base"
        with self.table.hold(version.id if version else 0):
            held = self._find(machine, key) or self._begin(machine, named, key)
            self._held.move_to_end(key)
            held.users += 1
            try:
                await asyncio.shield(held.loading)  # its client may leave; others wait for it
                yield held
            finally:
                held.users -= 1

    def _find(self, machine: Services, key: str) -> Held | None:
        if machine is not self._machine:  # other workers hold nothing yet
            self._machine, self._held = machine, OrderedDict()
        held = self._held.get(key)
        return held if held is not None and held.replicas.endpoints == tuple(_living(machine)) else None

    def _begin(self, machine: Services, named: Named, key: str) -> Held:
        endpoints, free = _living(machine), None
        if not endpoints:
            raise WorkerDied("No sampler lives.")
        if key not in self._held and len(self._held) >= self.most:
            free = next((held.name for held in self._held.values() if not held.users), None)
            if free is None:
                message = f"All {self.most} versions that the samplers hold for clients are being used. Try again."
                raise Refusal(503, "models_busy", message, "model", ROOM_SOON)
            del self._held[free]
        held = self._held[key] = Held(key, Replicas(endpoints))
        held.loading = asyncio.ensure_future(self._load(machine, named, held, free))
        return held

    async def _load(self, machine: Services, named: Named, held: Held, free: str | None) -> None:
        async with self._lock:  # in order: ``free`` leaves before it can come back
            if free is not None:
                await _retire(machine, free)
            endpoints, path = held.replicas.endpoints, machine.home.scratch / "served-base.safetensors"
            try:
                if named.version is not None:
                    await _load_file(endpoints, held.name, named.version.path, named.version.checksum)
                else:
                    checksum = await asyncio.to_thread(machine.write_bare, path)
                    await _load_file(endpoints, held.name, str(path), checksum)
            except BaseException:
                if self._held.get(held.name) is held:
                    del self._held[held.name]
                await _retire(machine, held.name)
                raise
            finally:
                path.unlink(missing_ok=True)


def _living(machine: Services) -> list[SamplerEndpoint]:
    return [endpoint for endpoint in machine.endpoints.values() if not endpoint.lost]


async def _load_file(endpoints: Sequence[SamplerEndpoint], key: str, path: str, checksum: str) -> None:
    loads = (endpoint.sampler.load(key, path) for endpoint in endpoints)
    results = await asyncio.gather(*loads, return_exceptions=True)
    if problem := next((result for result in results if isinstance(result, BaseException)), None):
        raise problem
    if any(result != checksum for result in results):
        raise AdapterError(f"The samplers loaded other bytes as {key} than were committed.")


async def _retire(machine: Services, key: str) -> None:
    for endpoint in machine.endpoints.values():
        with suppress(MarlaasError, ValueError):  # it was never there, or the workers are gone
            await endpoint.sampler.retire(key)


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
        if self._of_key[key] >= self.most_of_key:
            message = f"This key has {self.most_of_key} requests under way; more are answered once some have ended."
            raise Refusal(429, "too_many_requests", message, retry_after=AGAIN)
        if self.under_way >= self.most:
            message = f"The engine answers {self.most} requests at the moment, as many as it can. Try again."
            raise Refusal(429, "too_many_requests", message, retry_after=AGAIN)
        quota = self.store.tenants.get(tenant).tokens_per_day
        if quota and self.store.tenants.tokens_today().get(tenant, 0) >= quota:
            left = DAY - time.time() % DAY
            message = f"Tenant {tenant} has used its quota of {quota:,} tokens a day; the next day begins at 0:00 UTC."
            raise Refusal(429, "quota_exceeded", message, retry_after=left)
        if self.per_minute:
            now = self.clock()
            empty = max(self._empty.get(key, now), now) + MINUTE / self.per_minute
            late = empty - now - MINUTE
            if late > 1e-9:  # rounding error of a whole minute
                message = "This key has made as many requests in a minute as it may; the next one is possible soon."
                raise Refusal(429, "rate_limit", message, retry_after=late)
            self._empty[key] = empty
        self._of_key[key] += 1
        try:
            yield
        finally:
            self._of_key[key] -= 1
            self._of_key += Counter()  # drops keys without a request


class Serving:
    """All clients of one engine."""

    def __init__(self, store: Store, workers: WorkerSupervisor, base: str, per_minute: int = 0) -> None:
        """``base``: its name in the settings. ``per_minute``: of a key, 0: any number."""
        self.store = store
        self.workers = workers
        self.patience = PATIENCE
        self.loaded = LoadedVersions(store.served)
        self.limits = Limits(store, per_minute)
        self.base = PurePath(base).name if base.startswith((".", "/", "~")) else base
        self._machine: Services | None = None
        self._rollouts: dict[str, Rollout] = {}

    @property
    def busy(self) -> bool:
        return self.limits.under_way > 0

    def answerer(self, identity: Identity) -> Answerer:
        return _Answerer(self, identity)

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
    identity: Identity

    def reject(self, sentence: str) -> None:
        """The client has heard it."""

    async def models(self, key: str, name: str = "") -> tuple[Model, ...]:
        with _explained():
            names = self.serving.names(self.identity.tenant)
            models = (names.model(name),) if name else names.models()
            workers = self.serving.workers
            if workers.yielding is not None or not workers.ready:
                return models
            endpoints = (await workers.services()).endpoints.values()
            context = min((endpoint.context for endpoint in endpoints), default=0)
            return tuple(Model(one.id, one.parent, one.created, one.owner, context) for one in models)

    async def answer(self, request: Chat | Complete, tell: Tell) -> Answered:
        serving, tenant = self.serving, self.identity.tenant
        with _explained(), serving.limits.admitted(self.identity.key, tenant):
            named = serving.names(tenant).find(request.model)
            machine = await machine_of(serving.workers, serving.patience)
            async with serving.loaded.lent(machine, named) as lent:
                rollout = serving.rollout(machine, tenant)
                return await Desk(rollout, lent.replicas, lent.name, named.name).answer(request, tell)


@contextmanager
def _explained() -> Iterator[None]:
    try:
        yield
    except WorkerDied as error:
        message = "The engine's workers have ended; others take their place."
        raise Refusal(503, "workers_lost", message, retry_after=SOON) from error
    except StoreError as error:
        raise Refusal(503, "engine_busy", str(error), retry_after=SOON) from error
    except AdapterError as error:
        raise Refusal(404, "model_not_found", f"The version cannot be served: {error}", "model") from error
    except ValueError as error:
        raise Refusal(400, "invalid_request", str(error)) from error
    except MarlaasError as error:
        raise Refusal(500, "engine_error", str(error)) from error
