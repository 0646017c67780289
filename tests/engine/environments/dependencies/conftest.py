"""What the tests of libraries share."""

from __future__ import annotations

from pathlib import Path

import pytest

from .standins import StandIns


@pytest.fixture
def stand_ins(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> StandIns:
    """Scripts in place of the real programs."""
    return StandIns(tmp_path / "bin", monkeypatch)
