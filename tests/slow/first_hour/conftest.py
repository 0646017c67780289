"""Three sizes of the terminal, and waits that a slow machine passes."""

from __future__ import annotations

import pytest

from ...end_to_end import conftest, terminal

MODULES = (conftest, terminal)
LIMIT = 600.0
"""Seconds that a test waits for one thing, in place of the minute or two of ``make test``."""


@pytest.fixture(params=[(80, 24), (120, 36), (200, 50)], ids=lambda size: "{}x{}".format(*size))
def size(request: pytest.FixtureRequest) -> tuple[int, int]:
    """Columns and rows."""
    columns, rows = request.param
    return columns, rows


@pytest.fixture(autouse=True)
def patience(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in MODULES:
        monkeypatch.setattr(module, "PATIENCE", LIMIT)
