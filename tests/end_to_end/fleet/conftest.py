"""What takes longer than elsewhere."""

from __future__ import annotations

import pytest

from .. import conftest


@pytest.fixture
def patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """vLLM on a processor starts in minutes."""
    monkeypatch.setattr(conftest, "PATIENCE", 400.0)
