"""Homes whose databases are filled by hand."""

from __future__ import annotations

from pathlib import Path

import pytest

from marlaas.engine.home.paths import Home

from .commanding import Commander, FakeEngine
from .filling import Filling


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Home:
    """An empty home that the command line finds by itself."""
    home = Home(tmp_path / "home")
    monkeypatch.setenv("MARLAAS_HOME", str(home.root))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    return home


@pytest.fixture
def filling(home: Home) -> Filling:
    """A database with nothing in it."""
    return Filling(home.database)


@pytest.fixture
def marlaas(home: Home, capsys: pytest.CaptureFixture[str]) -> Commander:
    """Runs command lines on the home."""
    return Commander(capsys)


@pytest.fixture
def engine(monkeypatch: pytest.MonkeyPatch) -> FakeEngine:
    """A pretended engine."""
    return FakeEngine().install(monkeypatch)
