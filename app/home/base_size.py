"""How large a base is, for screens: counted once from the headers of its weights."""

from __future__ import annotations

from functools import lru_cache

from marlaas.engine.errors import MarlaasError


@lru_cache(8)
def base_size(name: str) -> int | None:
    """The number of parameters of the base of this name; None where its files are not here, or cannot be read."""
    from marlaas.engine.base import count_parameters

    try:
        return count_parameters(name)
    except (MarlaasError, OSError, ValueError):  # the name may be anything
        return None
