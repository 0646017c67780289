"""A client that costs next to nothing: requests over HTTP on plain sockets, a connection each, all at once."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from dataclasses import dataclass
from time import perf_counter, sleep
from typing import Any
from urllib.parse import urlsplit

Prompts = Sequence[Sequence[int]]


@dataclass(frozen=True)
class Client:
    """Of one open API."""

    url: str
    key: str
    model: str

    def answer(self, prompts: Prompts, tokens: int) -> tuple[float, int]:
        """Ask all at once for so many tokens each: seconds from the first ask to the last answer, and tokens.

        Raises ``RuntimeError`` with what the API says, where it refuses one.
        """
        return asyncio.run(self._answer(prompts, tokens))

    def wait(self, patience: float) -> None:
        """Wait until workers answer. Raises ``RuntimeError`` where none does in so many seconds."""
        deadline = perf_counter() + patience
        while True:
            try:
                self.answer([[0]], 1)
                return
            except RuntimeError:
                if perf_counter() > deadline:
                    raise
            sleep(1.0)

    def first_token(self, prompt: Sequence[int]) -> float:
        """Seconds until a stream tells of its first token."""
        return asyncio.run(self._first_token(prompt))

    async def _answer(self, prompts: Prompts, tokens: int) -> tuple[float, int]:
        began = perf_counter()
        asked = (self._one(number, prompt, tokens) for number, prompt in enumerate(prompts))
        found = await asyncio.gather(*asked)
        return perf_counter() - began, sum(found)

    async def _one(self, seed: int, prompt: Sequence[int], tokens: int) -> int:
        reader, writer = await self._ask(self._body(seed, prompt, tokens))
        head, _, body = (await reader.read()).partition(b"\r\n\r\n")
        writer.close()
        if b" 200 " not in head.split(b"\r\n")[0]:
            raise RuntimeError(f"The API refuses a request: {body.decode(errors='replace')[:300]}")
        return int(json.loads(body)["usage"]["completion_tokens"])

    async def _first_token(self, prompt: Sequence[int]) -> float:
        began = perf_counter()
        reader, writer = await self._ask(self._body(0, prompt, 2) | {"stream": True, "logprobs": 0})
        while line := await reader.readline():
            if line.startswith(b"data: {") and json.loads(line[6:])["choices"]:
                break
        else:
            raise RuntimeError("The API ended a stream without a token.")
        seconds = perf_counter() - began
        await reader.read()
        writer.close()
        return seconds

    def _body(self, seed: int, prompt: Sequence[int], tokens: int) -> dict[str, Any]:
        wishes = {"max_tokens": tokens, "temperature": 1.0, "seed": seed}
        return {"model": self.model, "prompt": [int(token) for token in prompt], **wishes}

    async def _ask(self, body: dict[str, Any]) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        parts = urlsplit(self.url)
        reader, writer = await asyncio.open_connection(parts.hostname, parts.port)
        text = json.dumps(body).encode()
        head = (
            f"POST /v1/completions HTTP/1.1\r\nHost: {parts.netloc}\r\nConnection: close\r\n"
            f"Authorization: Bearer {self.key}\r\nContent-Type: application/json\r\nContent-Length: {len(text)}\r\n\r\n"
        )
        writer.write(head.encode() + text)
        await writer.drain()
        return reader, writer
