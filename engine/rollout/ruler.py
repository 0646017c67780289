"""How long first prompts are for a base: asks flow in, numbers of tokens flow out. Knows no sampler."""

from __future__ import annotations

from ..environments.protocol import Ask
from .renderer import Renderer, TooLong
from .rendering import Rendering


class PromptRuler:
    """Measures as the conversations of this base do."""

    def __init__(self, renderer: Renderer, context: int) -> None:
        self.context = context
        """Tokens that a conversation may grow to."""
        self._rendering = Rendering(renderer)

    async def tokens(self, ask: Ask) -> int:
        """Of an agent's first ask; of one that is much too long, as many as it has at least.

        Raises ``ValueError`` or ``BaseModelError`` where the template refuses it.
        """
        try:
            return len(await self._rendering.open(ask, None, self.context))
        except TooLong as error:
            return error.tokens
