"""A browser that is only pretended: opens addresses of `marlaas serve` and reads what its websocket sends."""

from __future__ import annotations

import asyncio
import json
import re
from dataclasses import dataclass, field

import aiohttp

_SEQUENCES = re.compile(rb"\x1b\[[0-?]*[ -/]*[@-~]|\x1b[^\[]")


@dataclass
class Visitor:
    """One browser with its cookies."""

    address: str
    """With the secret path."""
    client: aiohttp.ClientSession = field(
        default_factory=lambda: aiohttp.ClientSession(cookie_jar=aiohttp.CookieJar(unsafe=True))
    )

    @property
    def base(self) -> str:
        """The address without its last slash."""
        return self.address.removesuffix("/")

    @property
    def origin(self) -> str:
        """The address without the path."""
        return self.base.rpartition("/")[0]

    async def open(self, path: str = "/", **headers: str) -> tuple[int, str]:
        """Status and text of a page."""
        address = path if path.startswith("http") else self.base + path
        async with self.client.get(address, headers=headers) as response:
            return response.status, await response.text()

    async def sees(self, words: str, keys: str = "", after: str = "") -> str:
        """All text that the application drew until it had drawn ``words``; ``keys`` are pressed once it has drawn
        ``after``."""
        seen = b""
        address = f"{self.base}/ws?width=100&height=30".replace("http:", "ws:")
        async with asyncio.timeout(30), self.client.ws_connect(address, origin=self.origin) as socket:
            async for message in socket:
                if message.type is aiohttp.WSMsgType.BINARY:
                    seen += message.data
                    if keys and after in words_of(seen):
                        await socket.send_str(json.dumps(["stdin", keys]))
                        keys = ""
                if words in words_of(seen):
                    return words_of(seen)
        raise AssertionError(f"The page closed before {words!r} was there: {words_of(seen)}")


def words_of(drawn: bytes) -> str:
    """What a terminal shows, without where and how."""
    return _SEQUENCES.sub(b"", drawn).decode("utf-8", "replace")
