"""What ``base use`` and ``base check`` say of how marlaas reads a base: its warnings, and the comparison."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ... import output
from ...words.format import line

if TYPE_CHECKING:
    from marlaas.engine.base import BaseModel, Comparison
    from marlaas.engine.home import Home, Settings


def warn(base: BaseModel) -> None:
    """Name the settings that nobody reads."""
    if base.config.unread:
        output.talk(
            f"config.json sets {line(', '.join(base.config.unread))}, which neither marlaas nor transformers reads for"
            f" {line(base.config.architecture)}: if it matters, the model is not what it was trained to be."
        )


def compared(home: Home, base: BaseModel, settings: Settings) -> Comparison:
    """Compare with transformers now. Raises ``BaseModelError`` for a base that marlaas reads otherwise."""
    import asyncio

    from marlaas.engine.devices import available_memory
    from marlaas.engine.fleet import check_comparison, compare_base

    output.talk("Comparing with transformers, in float32 …")
    result = asyncio.run(compare_base(base, home.root, available_memory(settings.resources.memory)))
    check_comparison(base, result)
    return result


def sentence(result: Comparison) -> str:
    """The result with what it took."""
    from marlaas.engine.fleet import spoken_comparison

    from ...words.format import size

    took = f" ({result.seconds:.0f} s, {size(result.memory)})" if result.memory else ""
    return f"{line(spoken_comparison(result))}{took}"
