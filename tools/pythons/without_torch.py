"""A plugin of pytest for a Python without PyTorch: tests that would import it are skipped, as ``importorskip`` does.

Loaded by ``python -m tools.pythons`` alone, so that nothing is skipped in an environment that should have it. Tests
that need PyTorch in a child process are left out: those marked ``torch``, and those of whole engines.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib.machinery import ModuleSpec
from types import ModuleType

import pytest

MISSING = ("torch", "transformers", "peft", "llama_cpp")
"""Not installed, or in need of something that is not; llama.cpp would have to be compiled."""
WHOLE = {"end_to_end", "slow"}
"""Folders whose tests run real engines with all their workers."""


class Skipper:
    """Stands before all other finders of modules, and skips the file, or the test, that imports one of ``MISSING``."""

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Skip for a module of ``MISSING``; return None for any other, so that the next finder is asked."""
        if name.partition(".")[0] in MISSING:
            pytest.skip(f"needs {name}", allow_module_level=True)
        return None


def pytest_configure() -> None:
    """Install the finder; pytest calls this before it collects."""
    sys.meta_path.insert(0, Skipper())


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out tests that would fail in a child process."""
    left_out = [item for item in items if item.get_closest_marker("torch") or WHOLE & set(item.path.parts)]
    items[:] = [item for item in items if item not in left_out]
    config.hook.pytest_deselected(items=left_out)
