"""Classes in TRL's form: documented methods are tools, ``get_reward`` pays."""

from __future__ import annotations

import random

import pytest

from marlaas.plugins.adapters import tool_class
from marlaas.plugins.adapters.tool_classes import tool_names

from .playing import calls, played


class Safe:
    """Open the safe."""

    def reset(self, digits: int = 2) -> str:
        self.code = str(random.randrange(10**digits)).zfill(digits)
        self.opened = False
        return f"The code has {digits} digits and ends in {self.code[-1]}."

    def turn(self, code: str) -> str:
        """Try a code."""
        self.opened = code == self.code
        return "open" if self.opened else "shut"

    def undocumented(self) -> None: ...

    def _hidden(self) -> None:
        """No tool."""

    def get_reward(self) -> float:
        """No tool either."""
        return float(self.opened)


async def test_tools_are_called_until_the_model_says_something_else() -> None:
    replies = [calls("turn", code="no"), "I give up"]
    result, _, model = await played(tool_class(Safe), replies)
    assert result == 0.0
    assert model.heard[0].startswith("The code has 2 digits") and model.heard[1] == "shut"
    (tool,) = model.asks[0].tools
    assert tool["function"]["name"] == "turn" and tool["function"]["description"] == "Try a code."
    assert (await played(tool_class(Safe), ["no"], member=5))[2].heard[0] == model.heard[0]


async def test_rows_reach_reset() -> None:
    class Asked(Safe):
        async def reset(self, prompt: str, digits: int) -> None:  # type: ignore[override]
            super().reset(digits)

    safe = tool_class(Asked, data=lambda split: [{"prompt": "Open it.", "digits": 3}], name="safe")
    _, _, model = await played(safe, ["no"], task={"prompt": "Open it.", "digits": 3})
    assert model.heard == ["Open it."] and safe.takes_task and safe.name == "safe"


async def test_a_model_that_is_told_nothing() -> None:
    class Silent(Safe):
        def reset(self) -> None:  # type: ignore[override]
            super().reset()

    with pytest.raises(ValueError, match="the model is told nothing"):
        await played(tool_class(Silent), ["no"])


def test_which_methods_are_tools() -> None:
    assert tool_names(Safe) == ["turn"]
    assert tool_class(Safe).description == "Open the safe."
