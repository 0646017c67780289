"""Tool calls in a model's text: one parser for each form. Anything that is not exactly a call stays text. Pure."""

from __future__ import annotations

from collections.abc import Callable, Collection

from marlaas.plugins.messages import ToolCall

from . import hermes, llama

Form = Callable[[str, bool], tuple[str, tuple[ToolCall, ...]]]
"""(text, True if the conversation has tools) to (text without its calls, the calls in order)."""


def form_of(template: str, control: Collection[str]) -> Form:
    """The form in a base's template or, if it has none, that of its control tokens."""
    if hermes.TAG in template:
        return hermes.split_hermes
    if llama.TAG in control or '"parameters"' in template:
        return llama.split_llama
    return hermes.split_hermes
