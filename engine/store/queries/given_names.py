"""Reads the names that tenants have given to versions. Standard library only."""

from __future__ import annotations

from dataclasses import dataclass

from .reader import Reader


@dataclass(frozen=True)
class GivenName:
    """A name under which the clients of a tenant find a version."""

    tenant: str
    name: str
    task: int
    policy: str
    number: int
    version: str
    """The version's own name."""
    kept: bool
    """Whether its file is on the disk: else the name means nothing any more."""


def given_names(reader: Reader) -> list[GivenName]:
    """All of them, by tenant and name."""
    rows = reader.all(
        "SELECT n.tenant, n.name, p.task, p.name AS policy, v.number, v.name AS version, v.state = 'committed' AS kept"
        " FROM adapter_names n JOIN versions v ON v.id = n.version JOIN policies p ON p.id = v.policy"
        " ORDER BY n.tenant, n.name"
    )
    return [GivenName(**{**dict(row), "kept": bool(row["kept"])}) for row in rows]
