"""The library of each adapter, in the version of its test, as a pip requirement.

This file does not check if it is installed.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

PINNED: dict[str, tuple[str, ...]] = {
    "reasoning_gym": ("reasoning-gym==0.1.25",),
    "gymnasium": ("gymnasium==1.4.0",),
    "textarena": ("textarena==0.7.4",),
    "verifiers": ("verifiers==0.1.14",),
    "verifiers_taskset": ("verifiers==0.4.0",),
    "openenv": ("openenv==0.10.0",),
    "program": (),
}

REQUIREMENT_OF_MODULE = {
    "reasoning_gym": PINNED["reasoning_gym"][0],
    "gymnasium": PINNED["gymnasium"][0],
    "gem": "gem-llm==0.1.0",
    "textarena": PINNED["textarena"][0],
    "verifiers": f"{PINNED['verifiers_taskset'][0]}, or {PINNED['verifiers'][0]} for load_environment",
    "openenv": PINNED["openenv"][0],
}


def default_dependencies(adapter: str) -> tuple[str, ...]:
    """The default requirements of an adapter's plugin; ``ValueError`` for an unknown name."""
    if adapter not in PINNED:
        raise ValueError(f"there is no adapter {adapter!r}; there are {', '.join(PINNED)}")
    return PINNED[adapter]


def dependencies_of(document: Mapping[str, Any]) -> tuple[str, ...]:
    """The requirements of a ``.toml`` plugin: its own ``dependencies``, or the defaults of every adapter in it.

    ``document``: the parsed file. Raises ``ValueError`` if ``dependencies`` is no list of texts. An unknown adapter is
    skipped: loading the file reports it, with its line.
    """
    own = document.get("dependencies")
    if own is not None:
        if not isinstance(own, list) or not all(isinstance(entry, str) for entry in own):
            raise ValueError("dependencies must be a list of texts")
        return tuple(own)
    tables = document.get("environments", [document])
    adapters = [table.get("adapter") for table in tables if isinstance(table, dict)] if isinstance(tables, list) else []
    known = [adapter for adapter in adapters if isinstance(adapter, str) and adapter in PINNED]
    return tuple(dict.fromkeys(requirement for adapter in known for requirement in PINNED[adapter]))
