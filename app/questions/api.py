"""What the view of the API shows: whether it is open, its keys, the names of adapters, and the latest requests."""

from __future__ import annotations

from dataclasses import dataclass, field

from marlaas.engine.home import Home
from marlaas.engine.store import ApiKeyRow, ApiRow, GivenName

from ..home.api.request_log import FILE, Request, requests_in
from ..home.log_files import Tail, tail
from ..reading.home_reader import HomeReader


@dataclass(frozen=True)
class ApiAnswer:
    """The API of a home at one moment."""

    state: ApiRow
    keys: tuple[ApiKeyRow, ...] = ()
    """Those that hold, the newest first; then those that were revoked, the latest first."""
    names: tuple[GivenName, ...] = ()
    requests: tuple[Request, ...] = ()
    """The latest of all keys, the newest first."""
    log: Tail = field(default_factory=Tail)

    @property
    def holding(self) -> tuple[ApiKeyRow, ...]:
        """Keys that were not revoked."""
        return tuple(key for key in self.keys if key.revoked is None)

    def key(self, id: int | None) -> ApiKeyRow | None:
        """One key by its number."""
        return next((key for key in self.keys if key.id == id), None)

    def names_of(self, tenant: str) -> tuple[GivenName, ...]:
        """Names that a tenant gave: those that its keys may use."""
        return tuple(name for name in self.names if name.tenant == tenant)

    def requests_of(self, key: ApiKeyRow) -> tuple[Request, ...]:
        """The latest requests with a key."""
        return tuple(request for request in self.requests if request.key == key.prefix)


def _place(key: ApiKeyRow) -> tuple[bool, float, int]:
    return key.revoked is not None, -(key.revoked or 0.0), -key.id


@dataclass(frozen=True)
class ApiQuestion:
    """Asks for all of a home's."""

    home: Home

    def read(self, reader: HomeReader, before: ApiAnswer | None) -> ApiAnswer:
        """Read the answer with three short queries, and what was added to the log of requests."""
        keys = tuple(sorted(reader.api_keys(), key=_place))
        log = tail(self.home.logs / FILE, before.log if before else None)
        requests = before.requests if before is not None and log is before.log else requests_in(log.lines)
        return ApiAnswer(reader.api_state() or ApiRow(), keys, tuple(reader.given_names()), requests, log)
