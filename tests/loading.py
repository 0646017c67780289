"""Loads a plugin in this process."""

from __future__ import annotations

from pathlib import Path

from marlaas.plugins import Environment
from marlaas.plugins.host.loading import load_all


def load(path: Path) -> dict[str, Environment]:
    """All its environments; raises the error of a broken entry."""
    loaded = load_all(path)
    for error in loaded.refused.values():
        raise error
    return loaded.environments
