"""Reads the API's keys and whether it is open. Standard library only."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from ..rows import ApiKeyRow, ApiRow
from .reader import Reader

KEYS = (
    "SELECT id, tenant, name, prefix, scopes, created, last_use, revoked, requests, tokens_in, tokens_out FROM api_keys"
)


def api_keys(reader: Reader) -> list[ApiKeyRow]:
    """All keys, revoked ones too, oldest first."""
    return [key_row(dict(row)) for row in reader.all(f"{KEYS} ORDER BY id")]


def api_state(reader: Reader) -> ApiRow | None:
    """Whether the API is open, as its engine wrote last: one that was killed has not written that it is closed.

    None where it was never asked for.
    """
    rows = reader.all("SELECT * FROM api")
    return api_row(dict(rows[0])) if rows else None


def key_row(row: Mapping[str, Any]) -> ApiKeyRow:
    """A row of ``KEYS``."""
    return ApiKeyRow(**{**row, "scopes": tuple(json.loads(row["scopes"]))})


def api_row(row: Mapping[str, Any]) -> ApiRow:
    """The row of the table ``api``."""
    shown = {name: row[name] for name in ("port", "url", "since", "note")}
    return ApiRow(None if row["switched"] is None else bool(row["switched"]), open=bool(row["open"]), **shown)
