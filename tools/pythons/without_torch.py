"""A plugin of pytest for a Python that has no PyTorch: what would import it is skipped, as ``importorskip`` does it.

Loaded by ``python -m tools.pythons`` alone, so that nothing is skipped in an environment that should have it. What
starts it in a child process is left out: tests marked ``torch``, and those of whole engines.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib.machinery import ModuleSpec
from types import ModuleType

import pytest

MISSING = ("torch", "transformers", "peft", "llama_cpp")
"""What is not installed, or rests on what is not; llama.cpp would have to be compiled."""
WHOLE = {"end_to_end", "slow"}
"""Folders whose tests run real engines with all their workers."""


class Skipper:
    """Stands before all other finders of modules, and skips the file, or the test, that imports one of ``MISSING``."""

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Nothing, for any other module: the next finder is asked."""
        if name.partition(".")[0] in MISSING:
            pytest.skip(f"needs {name}", allow_module_level=True)
        return None


def pytest_configure() -> None:
    """Called by pytest before it collects."""
    sys.meta_path.insert(0, Skipper())


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out what would fail in a child process."""
    left_out = [item for item in items if item.get_closest_marker("torch") or WHOLE & set(item.path.parts)]
    items[:] = [item for item in items if item not in left_out]
    config.hook.pytest_deselected(items=left_out)
