"""What the view of the API shows: whether it is open, its keys, and the names of adapters."""

from __future__ import annotations

from dataclasses import dataclass

from marlaas.engine.store import ApiKeyRow, ApiRow, GivenName

from ..reading.home_reader import HomeReader


@dataclass(frozen=True)
class ApiAnswer:
    """The API of a home at one moment."""

    state: ApiRow
    keys: tuple[ApiKeyRow, ...] = ()
    """Those that hold, the newest first; then those that were revoked, the latest first."""
    names: tuple[GivenName, ...] = ()

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


def _place(key: ApiKeyRow) -> tuple[bool, float, int]:
    return key.revoked is not None, -(key.revoked or 0.0), -key.id


@dataclass(frozen=True)
class ApiQuestion:
    """Asks for all of it."""

    def read(self, reader: HomeReader, before: ApiAnswer | None) -> ApiAnswer:
        """Read the answer with three short queries."""
        keys = tuple(sorted(reader.api_keys(), key=_place))
        return ApiAnswer(reader.api_state() or ApiRow(), keys, tuple(reader.given_names()))
