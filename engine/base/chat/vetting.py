"""Tests a chat template before use: compiles and tries it in a child process with bounds on memory and time.

The child process is needed because ``sandbox`` cannot count what compiling costs, nor what a single operation of
Python's builds. The shipped template is not tested. Run as a program, ``python -P -m
marlaas.engine.base.chat.vetting PARENT`` reads sources from its standard input.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import subprocess
import sys
from functools import lru_cache
from itertools import product
from typing import Any, NoReturn

from ...errors import BaseModelError
from ..find import SHIPPED
from .template import ChatTemplate

MEMORY_MB = 512
"""Address space of the child; Python itself takes a tenth of it."""
SECONDS = 20
"""Processor seconds of the child; models' templates take almost none."""
_PATIENCE = 120.0
"""Seconds to wait for the child, which is much for a busy machine."""
_NICE = 0
_known: dict[bytes, tuple[str, str] | None] = {}
"""Results by request: None for a template that may be used."""
_HINT = "A template like that is broken or hostile: take the model's files from somebody whom you trust."


def vet(sources: list[str], tokens: dict[str, str], name: str) -> None:
    """Raise ``BaseModelError`` unless each of the sources compiles and renders within bounds.

    ``tokens`` and ``name`` are those of ``ChatTemplate``. A process tests each template once.
    """
    request = json.dumps([sources, tokens, name]).encode()
    if sources == [_shipped()]:
        return
    digest = hashlib.sha256(request).digest()
    if digest not in _known:
        _known[digest] = _verdict(request)
    if said := _known[digest]:
        raise BaseModelError(*said)


@lru_cache(1)
def _shipped() -> str:
    with contextlib.suppress(OSError, ValueError):
        return (SHIPPED["tiny"] / "chat_template.jinja").read_text("utf-8")
    return ""


def _verdict(request: bytes) -> tuple[str, str] | None:
    """Test in a child process: None, or an error's sentence and hint."""
    command = [sys.executable, "-P", "-m", "marlaas.engine.base.chat.vetting", str(os.getpid())]
    try:
        child = subprocess.run(command, input=request, capture_output=True, timeout=_PATIENCE, check=False)
        message, hint = json.loads(child.stdout)
    except OSError as error:
        return f"The base model's chat template cannot be tried: {error}.", ""
    except (ValueError, TypeError, subprocess.TimeoutExpired):
        message = "The base model's chat template takes more memory or time than any template may."
        return message, _HINT
    return (str(message), str(hint)) if message else None


def main() -> NoReturn:
    """Test the templates of the request on standard input, within limits, and write the result."""
    import resource

    from marlaas.plugins.host.limits import apply

    apply(MEMORY_MB, int(sys.argv[1]), _NICE)
    with contextlib.suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_CPU, (SECONDS, SECONDS))
    try:
        _try(*json.load(sys.stdin))
        said = ["", ""]
    except BaseModelError as error:
        said = [error.message, error.hint]
    print(json.dumps(said))
    sys.stdout.flush()
    os._exit(0)


def _try(sources: list[str], tokens: dict[str, str], name: str) -> None:
    """Compile each source and render sample conversations; it may refuse some of them, but not all."""
    for source in sources:
        template = ChatTemplate(source, tokens, name)
        written, refused = 0, None
        for (messages, tools), thinking in product(_samples(), (None, False)):
            try:
                template.render(messages, tools, thinking)
                written += 1
            except BaseModelError as error:
                if isinstance(error.__cause__, MemoryError):
                    raise
                refused = refused or error
        if refused and not written:
            raise refused


def _samples() -> list[tuple[list[dict[str, Any]], list[dict[str, Any]] | None]]:
    """Sample conversations with all kinds of messages: of few, of many and of long turns."""

    def said(role: str, content: str, **more: Any) -> dict[str, Any]:
        return {"role": role, "content": content, **more}

    parameters = {"type": "object", "properties": {"text": {"type": "string", "description": "what"}}}
    tool = {"type": "function", "function": {"name": "look", "description": "Looks.", "parameters": parameters}}
    call = {"type": "function", "function": {"name": "look", "arguments": {"text": "x"}}}
    turn = [said("user", "Hello"), said("assistant", "<think>\nb\n</think>\n\nHi")]
    used = [said("user", "Look"), said("assistant", "", tool_calls=[call]), said("tool", "found", name="look")]
    return [
        (turn[:1], None),
        ([said("system", "Be brief."), *turn, *turn[:1]], None),
        (used, [tool]),
        ([said("system", "Be brief."), *turn * 30, *used, *turn[:1]], [tool] * 8),
        ([said("user", "word " * 4000)], None),
    ]


if __name__ == "__main__":
    main()
