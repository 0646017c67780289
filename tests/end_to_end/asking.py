"""Asking the API of a real engine, as any client does."""

from __future__ import annotations

import http.client
import json
import socket
from typing import Any
from urllib.parse import urlsplit

from .conftest import PATIENCE, Lab

CHAT = {"model": "nobody@1", "messages": [{"role": "user", "content": "hello"}]}


def free_port() -> int:
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        return int(bound.getsockname()[1])


def opened(lab: Lab) -> str:
    """Wait until the API is open; where."""
    return str(json.loads(lab.marlaas("api", "start", "--json"))["url"])


def ask(url: str, key: str | None, path: str = "/v1/chat/completions", body: Any = CHAT) -> tuple[int, dict[str, Any]]:
    """The status and the JSON of an answer, as any client gets it."""
    place = urlsplit(url)
    connection = http.client.HTTPConnection(place.hostname or "", place.port, timeout=PATIENCE)
    headers = {"Content-Type": "application/json"} | ({"Authorization": f"Bearer {key}"} if key else {})
    try:
        connection.request("POST" if body else "GET", path, json.dumps(body) if body else None, headers)
        answer = connection.getresponse()
        return answer.status, json.loads(answer.read())
    finally:
        connection.close()
