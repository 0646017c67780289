"""Tool calls in what a model wrote: one small parser for each form, and which form a base has.

What is not exactly a call stays text, so that the environment, and the reward, see what was really said. Pure.
"""

from __future__ import annotations

from collections.abc import Callable, Collection

from marlaas.plugins.messages import ToolCall

from . import hermes, llama

Form = Callable[[str, bool], tuple[str, tuple[ToolCall, ...]]]
"""(text, whether the conversation has tools) to (text without its calls, the calls in order)."""


def form_of(template: str, control: Collection[str]) -> Form:
    """The form that a base's template shows or, if it shows none, that its control tokens are made for."""
    if hermes.TAG in template:
        return hermes.split_hermes
    if llama.TAG in control or '"parameters"' in template:
        return llama.split_llama
    return hermes.split_hermes
