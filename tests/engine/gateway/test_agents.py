"""What agent programs of the package indexes send at their defaults, with filler for each text."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from marlaas.engine import wire

from .scripted import echo, gateway

AGENTS = Path(__file__).parents[2] / "fixtures" / "agents"
FILLER = re.compile(r"(.*)~(\d+)", re.DOTALL)


def filled(value: Any) -> Any:
    """With a text of the same length for each ``~LENGTH``."""
    if isinstance(value, dict):
        return {key: filled(each) for key, each in value.items()}
    if isinstance(value, list):
        return [filled(each) for each in value]
    if isinstance(value, str) and (found := FILLER.fullmatch(value)):
        return found[1] + ("filler " * (int(found[2]) // 7 + 1))[: int(found[2])]
    return value


def requests_of(agent: str) -> list[tuple[str, dict[str, Any]]]:
    rows = json.loads((AGENTS / f"{agent}.json").read_text("utf-8"))
    return [(row["path"], filled(row["body"])) for row in rows]


@pytest.mark.parametrize(
    ("agent", "tools", "ignored"),
    [
        ("codex", [12], "tools of type web_search"),
        ("claude-code", [24, 24], ""),
        ("opencode", [0, 10], ""),
        ("pi", [4, 4], ""),
        ("qwen-code", [11, 4], ""),
    ],
)
async def test_agents_are_answered_at_their_defaults(agent: str, tools: list[int], ignored: str) -> None:
    async with gateway(echo) as client:
        for path, body in requests_of(agent):
            status, _, headers = await client.posted(path, {**body, "stream": False})
            assert status == 200 and headers.get("x-marlaas-ignored", "") == ignored
            assert (await client.stream(path, {**body, "stream": True}))[0][1]
        asked = client.engine.asked[::2]
    assert [len(request.tools) for request in asked] == tools
    assert all(isinstance(request, wire.Chat) and request.messages for request in asked)


async def test_claude_code_goes_on_with_its_conversation() -> None:
    """Its system prompt begins with a line that differs in every request."""
    async with gateway(echo) as client:
        for (path, body), code in zip(requests_of("claude-code"), "ab", strict=True):
            body["system"][0]["text"] += code
            assert (await client.post(path, {**body, "stream": False}))[0] == 200
        first, second = client.engine.asked
    assert second.messages[: len(first.messages)] == first.messages and second.tools == first.tools
