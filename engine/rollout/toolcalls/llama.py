"""Llama 3's form: the whole reply is ``{"name": …, "parameters": {…}}``, perhaps behind ``<|python_tag|>``. One call.

Without that tag a call looks like an answer in JSON: in a conversation without tools it is text.
"""

from __future__ import annotations

from marlaas.plugins.messages import ToolCall

from .call import read_call

TAG = "<|python_tag|>"


def split_llama(text: str, tools: bool) -> tuple[str, tuple[ToolCall, ...]]:
    """An empty text and the call, or the text as it is."""
    body = text.strip()
    tagged = body.startswith(TAG)
    if not (tools or tagged):
        return text, ()
    body = body.removeprefix(TAG).lstrip()
    call, end = read_call(body)
    return (text, ()) if call is None or end < len(body) else ("", (call,))
