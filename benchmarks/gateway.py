"""Tokens a second and the time to the first token through the whole API, next to the bare sampler.

Both sides take turns on the same cores; the side that has no turn does nothing meanwhile.
"""

from __future__ import annotations

import asyncio
import json
import multiprocessing
import os
import subprocess
import sys
import tempfile
from collections import defaultdict
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from http.client import HTTPConnection
from pathlib import Path
from time import perf_counter, process_time, sleep
from typing import Any, ClassVar
from urllib.parse import urlsplit

import numpy as np

from marlaas.engine.devices.survey import measure_here as measure_device
from marlaas.engine.home.paths import Home
from marlaas.engine.machine.lone_sampler import write_bare
from marlaas.engine.models.find import BaseModel, load_base
from marlaas.engine.samplers.protocol import SampleRequest
from marlaas.engine.samplers.torch.sampler import TorchSampler
from tools.random_base.make import make_base

from .machinery.fleet import WIDE_ENGINE, fleet
from .report.figures import Row, Section, Series

PROMPT, TOKENS, CONTEXT = 32, 24, 512
"""Tokens of a prompt, of an answer, and of what a conversation may hold."""
CONVERSATIONS, LONG_PROMPT = 64, 256
STARTING = 180.0
"""Seconds within which the engine's workers have loaded the base."""
SETTINGS = """\
base = {base}
[rollout]
sampler = "torch"
weights = "{weights}"
sequences = {sequences}
context = {context}
[api]
port = 0
"""
METHOD = """\
A random base of 0.5 B parameters made by `tools.random_base`: {layers} layers of width {width}, vocabulary {rows:,},
weights in {weights}, without an adapter. **Through the gateway**: a client on plain sockets posts to `/v1/completions`
of a running engine, prompts in tokens, a connection each; the engine has all cores for its sampler, and no task. **Bare
sampler**: the same sampler class in a process of its own with all cores, called directly. {conversations} conversations
at once have prompts of {prompt} tokens and answers of {tokens}; alone, a prompt has {long} tokens, and the time is that
until the first token is known, by a stream through the gateway. Temperature 1; prompts are part of the time. Processor
time is that of all who take part: client, gateway, engine and all of its workers, or the bare sampler's process.
{repetitions} repetitions after one that is not counted; the sides take turns, and the other one begins each time.
"""
REMARKS = """\
What lies between: HTTP and JSON in the gateway's process, frames to the engine and from there to the sampler's process,
the lines of keys and tenants, text made of tokens. All of it runs on the same cores as the sampler.
"""
Prompts = Sequence[Sequence[int]]


def measure(quick: bool) -> Section:
    """Takes about six minutes, or two when quick."""
    repetitions = 2 if quick else 6
    weights = "bf16" if measure_device("cpu").gain > 1 else "f32"
    with tempfile.TemporaryDirectory() as folder:
        base = make_base(Path(folder) / "base", "qwen2.5", "0.5b")
        rows = compared(base, weights, CONVERSATIONS, repetitions)
    config = base.config
    method = METHOD.format(
        layers=config.layers,
        width=config.hidden_size,
        rows=config.vocab_size,
        weights={"bf16": "bfloat16"}.get(weights, "float32"),
        conversations=CONVERSATIONS,
        prompt=PROMPT,
        tokens=TOKENS,
        long=LONG_PROMPT,
        repetitions=repetitions,
    )
    return Section("gateway", "Through the gateway, beside the bare sampler", method, tuple(rows), REMARKS)


def compared(base: BaseModel, weights: str, conversations: int, repetitions: int) -> list[Row]:
    """All rows, of this many conversations at once."""
    settings = SETTINGS.format(
        base=json.dumps(str(base.path)), weights=weights, sequences=conversations, context=CONTEXT
    )
    found: dict[tuple[str, str], list[float]] = defaultdict(list)
    random = np.random.default_rng(0)

    def drawn(count: int, length: int) -> list[list[int]]:
        rows: list[list[int]] = random.integers(0, base.config.vocab_size // 2, (count, length)).tolist()
        return rows

    with (
        fleet(settings=settings, module=WIDE_ENGINE, warm=False) as engine,
        ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as process,
    ):
        client = opened(engine.home)
        process.submit(Bare.start, base.path, weights, conversations, CONTEXT).result()
        client.wait(STARTING)
        for turn in range(repetitions + 1):
            prompts, alone = drawn(conversations, PROMPT), drawn(1, LONG_PROMPT)
            for side in sorted(("ours", "bare"), reverse=bool(turn % 2)):
                if side == "ours":
                    before = engine.spent() + process_time()
                    seconds, sampled = client.answer(prompts, TOKENS)
                    spent = engine.spent() + process_time() - before
                    first = client.first_token(alone[0])
                else:
                    seconds, sampled, spent = process.submit(Bare.answer, prompts, TOKENS).result()
                    first = process.submit(Bare.answer, alone, 1).result()[0]
                for what, value in (
                    ("rate", sampled / seconds),
                    ("spent", 1e3 * spent / sampled),
                    ("first", 1e3 * first),
                ):
                    found[what, side].append(value)

    def row(words: str, unit: str, what: str, goal: str = "within 10 %") -> Row:
        ours, theirs = (Series(tuple(found[what, side][1:])) for side in ("ours", "bare"))  # the first warms up
        return Row(words, unit, ours, theirs, "bare sampler", higher_is_better=what == "rate", goal=goal)

    return [
        row(f"{conversations} conversations at once", "tokens/s", "rate"),
        row(f"processor time of a token, {conversations} at once", "ms", "spent"),
        row("time to the first token, alone", "ms", "first", ""),
    ]


class Bare:
    """The sampler with the base under one version, in its own process with all cores."""

    runner: ClassVar[asyncio.Runner]
    sampler: ClassVar[TorchSampler]

    @classmethod
    def start(cls, folder: Path, weights: str, sequences: int, context: int) -> None:
        """Open the sampler in this process, for ``answer``."""
        cls.runner = asyncio.Runner()
        threads = len(os.sched_getaffinity(0))
        cls.sampler = TorchSampler(str(folder), sequences, context, threads, weights)  # type: ignore[arg-type]
        path = folder.parent / "bare.safetensors"
        write_bare(load_base(str(folder)), path)
        cls.runner.run(cls.sampler.load("base", str(path)))

    @classmethod
    def answer(cls, prompts: Prompts, tokens: int) -> tuple[float, int, float]:
        """Answer all at once with this many tokens each: seconds, tokens, seconds of a processor."""

        async def every() -> int:
            return sum(await asyncio.gather(*(cls._sample(*pair, tokens) for pair in enumerate(prompts))))

        began, spent = perf_counter(), process_time()
        sampled = cls.runner.run(every())
        return perf_counter() - began, sampled, process_time() - spent

    @classmethod
    async def _sample(cls, number: int, prompt: Sequence[int], tokens: int) -> int:
        request = SampleRequest(str(number), "base", np.array(prompt, np.int32), tokens, 1.0, (), number, alike=False)
        result = await cls.sampler.generate(request)
        await cls.sampler.release(str(number))
        return len(result.tokens)


@dataclass(frozen=True)
class Client:
    """A client of one open API that costs next to nothing: HTTP on plain sockets, a connection for each request."""

    url: str
    key: str
    model: str

    def answer(self, prompts: Prompts, tokens: int) -> tuple[float, int]:
        """Ask all at once for this many tokens each: seconds from the first ask to the last answer, and tokens.

        Raises ``RuntimeError`` with what the API answers if it refuses a request.
        """

        async def every() -> int:
            return sum(await asyncio.gather(*(self._complete(*pair, tokens) for pair in enumerate(prompts))))

        began = perf_counter()
        sampled = asyncio.run(every())
        return perf_counter() - began, sampled

    def wait(self, patience: float) -> None:
        """Wait until workers answer. Raises ``RuntimeError`` if none does in this many seconds."""
        deadline = perf_counter() + patience
        while perf_counter() < deadline:
            with suppress(RuntimeError):
                self.answer([[0]], 1)
                return
            sleep(1.0)
        self.answer([[0]], 1)

    def first_token(self, prompt: Sequence[int]) -> float:
        """Seconds until a stream brings its first token."""
        return asyncio.run(self._first_token(prompt))

    async def _complete(self, seed: int, prompt: Sequence[int], tokens: int) -> int:
        reader, writer = await self._post(prompt, max_tokens=tokens, seed=seed)
        head, _, body = (await reader.read()).partition(b"\r\n\r\n")
        writer.close()
        if b" 200 " not in head.split(b"\r\n")[0]:
            raise RuntimeError(f"The API refuses a request: {body.decode(errors='replace')[:300]}")
        return int(json.loads(body)["usage"]["completion_tokens"])

    async def _first_token(self, prompt: Sequence[int]) -> float:
        began = perf_counter()
        reader, writer = await self._post(prompt, max_tokens=2, seed=0, stream=True, logprobs=0)
        while line := await reader.readline():
            if line.startswith(b"data: {") and json.loads(line[6:])["choices"]:
                break
        else:
            raise RuntimeError("The API ended a stream without a token.")
        seconds = perf_counter() - began
        await reader.read()
        writer.close()
        return seconds

    async def _post(self, prompt: Sequence[int], **options: Any) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        parts = urlsplit(self.url)
        reader, writer = await asyncio.open_connection(parts.hostname, parts.port)
        body = {"model": self.model, "prompt": list(prompt), "temperature": 1.0, **options}
        text = json.dumps(body).encode()
        head = (
            f"POST /v1/completions HTTP/1.1\r\nHost: {parts.netloc}\r\nConnection: close\r\n"
            f"Authorization: Bearer {self.key}\r\nContent-Type: application/json\r\nContent-Length: {len(text)}\r\n\r\n"
        )
        writer.write(head.encode() + text)
        await writer.drain()
        return reader, writer


def opened(home: Home) -> Client:
    """Open the API of a running home to a new key."""

    def marlaas(*words: str) -> Any:
        command = [sys.executable, "-P", "-m", "marlaas.app.cli.main", "--home", str(home.root), *words, "--json"]
        done = subprocess.run(command, capture_output=True, text=True, check=True, stdin=subprocess.DEVNULL)
        return json.loads(done.stdout)

    url, key = marlaas("api", "start")["url"], marlaas("api", "key", "new", "bench")["key"]
    parts = urlsplit(url)
    connection = HTTPConnection(parts.hostname or "", parts.port)
    connection.request("GET", "/v1/models", headers={"Authorization": f"Bearer {key}"})
    listed = json.loads(connection.getresponse().read())
    connection.close()
    return Client(url, key, listed["data"][0]["id"])
