"""Clients that no one here wrote talk with an adapter and with the base, and evaluate both; and very many at once."""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
import shutil
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from marlaas.engine.home.paths import TINY_BASE
from tests.end_to_end.conftest import Lab

from .conftest import Open, opened, ran, stored, trained

EXAMPLES = Path(__file__).parents[3] / "examples"
pytestmark = [pytest.mark.clients, pytest.mark.processes, pytest.mark.timeout(900)]


@dataclass(frozen=True)
class Served:
    """A home that serves a task's adapter, and its base."""

    api: Open
    models: dict[str, str]


@pytest.fixture(scope="module")
def served(shipped_lab: Lab) -> Iterator[Served]:
    task = shipped_lab.submit("sums", steps=6)
    shipped_lab.marlaas("wait", str(task))
    yield Served(opened(shipped_lab), {"adapter": f"{task}@6", "base": "tiny"})


@pytest.mark.parametrize("which", ["adapter", "base"])
def test_the_sdks_talk_with_it_and_hear_the_same(served: Served, which: str) -> None:
    texts = {ran(name, f"serve_{name}.py", served.api, served.models[which]) for name in ("openai", "anthropic")}
    assert len(texts) == 1 and texts.pop().strip()


@pytest.mark.parametrize("which", ["adapter", "base"])
def test_inspect_ai_evaluates_it(served: Served, which: str) -> None:
    accuracy = float(ran("inspect-ai", "serve_inspect.py", served.api, served.models[which]).splitlines()[-1])
    assert 0 <= accuracy <= 1


@pytest.mark.parametrize("which", ["adapter", "base"])
def test_lm_eval_evaluates_it(served: Served, which: str) -> None:
    said = ran("lm-eval", "serve_lm_eval.py", served.api, served.models[which], str(TINY_BASE))
    found = json.loads(said.splitlines()[-1])
    assert float(found["marlaas_sums"]["acc,none"]) > 0.5, "the base knows that letters are no sum"
    assert "marlaas_words" in found


@pytest.mark.parametrize("which", ["adapter", "base"])
def test_verifiers_evaluates_it(served: Served, which: str) -> None:
    assert 0 <= float(ran("verifiers", "serve_verifiers.py", served.api, served.models[which]).splitlines()[-1]) <= 1


def test_500_connections_starve_no_episode(shipped_lab: Lab, served: Served) -> None:
    """They ask again and again, and wait as they are told to; meanwhile a task's programs ask their models, too."""
    shutil.copytree(EXAMPLES / "own_agent", shipped_lab.home.root / "own_agent")
    (shipped_lab.home.root / "own_agent").rename(shipped_lab.home.plugins / "own_agent")

    async def crowd() -> tuple[int, Counter[int]]:
        statuses: Counter[int] = Counter()
        clients = [asyncio.create_task(asks_on(served.api, statuses)) for _ in range(500)]
        while statuses.total() < 500:
            await asyncio.sleep(0.1)
        train = {"groups_per_step": 2, "group_size": 8, "max_staleness": 0}
        number = shipped_lab.submit("crowded", "own_agent", steps=3, train=train, sampling={"max_tokens": 8})
        await asyncio.to_thread(trained, shipped_lab, number, 400)
        before = statuses.total()
        while statuses.total() == before:
            await asyncio.sleep(0.1)
        for client in clients:
            client.cancel()
        await asyncio.gather(*clients, return_exceptions=True)
        return number, statuses

    number, statuses = asyncio.run(crowd())
    assert set(statuses) <= {200, 429, 503} and statuses[200] > 0, statuses
    episodes = stored(shipped_lab, number)
    assert len(episodes) == 3 * 2 * 8 and {each.status for each in episodes} == {"ok"}, [e.failure for e in episodes]


async def asks_on(api: Open, statuses: Counter[int]) -> None:
    """A client that never stops: a connection each time."""
    messages = [{"role": "user", "content": "47+85="}]
    body = json.dumps({"model": "tiny", "messages": messages, "max_tokens": 4}).encode()
    head = f"POST /v1/chat/completions HTTP/1.1\r\nHost: a\r\nConnection: close\r\nAuthorization: Bearer {api.key}\r\n"
    place = urlsplit(api.url)
    while True:
        reader, writer = await asyncio.open_connection(place.hostname, place.port)
        try:
            writer.write(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)
            answer = await reader.read()
        finally:
            writer.close()
            with contextlib.suppress(ConnectionError):
                await writer.wait_closed()
        statuses[int(answer.split()[1])] += 1
        if wait := re.search(rb"(?i)retry-after: (\d+)", answer):
            await asyncio.sleep(int(wait[1]))
