"""A worker that does nothing, so that a call to it costs what the messages cost."""

from __future__ import annotations

FACTORY = "benchmarks.engine_worker:Echo"


class Echo:
    """Gives back what it gets."""

    async def echo(self, value: object) -> object:
        """Return ``value``."""
        return value
