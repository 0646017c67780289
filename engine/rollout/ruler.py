"""How long first prompts are for a base: asks flow in, numbers of tokens flow out. Knows no sampler."""

from __future__ import annotations

from ..environments.protocol import Ask
from .renderer import Renderer


class PromptRuler:
    """Measures as the conversations of this base do."""

    def __init__(self, renderer: Renderer, context: int) -> None:
        self.context = context
        """Tokens that a conversation may grow to."""
        self._renderer = renderer

    def tokens(self, ask: Ask) -> int:
        """Of an agent's first ask. Raises ``ValueError`` or ``BaseModelError`` where the template refuses it."""
        return len(self._renderer.open(ask.messages, ask.tools))
