"""Tokens a second and the time to the first token through the whole API, beside the bare sampler.

Both sides take turns on the same cores; whoever has no turn does nothing meanwhile.
"""

from __future__ import annotations

import json
import multiprocessing
import subprocess
import sys
import tempfile
from collections import defaultdict
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from http.client import HTTPConnection
from pathlib import Path
from time import process_time
from urllib.parse import urlsplit

import numpy as np

from marlaas.engine.base.model import BaseModel
from marlaas.engine.devices.measuring import measure as measure_device
from marlaas.engine.home.paths import Home
from tools.random_base.make import make_base

from ..machinery.fleet import WIDE_ENGINE, fleet
from ..report.figures import Row, Section, Series
from . import bare
from .client import Client

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
    """All rows, of so many conversations at once."""
    settings = SETTINGS.format(
        base=json.dumps(str(base.path)), weights=weights, sequences=conversations, context=CONTEXT
    )
    rates: dict[str, list[float]] = defaultdict(list)
    spent: dict[str, list[float]] = defaultdict(list)
    firsts: dict[str, list[float]] = defaultdict(list)
    random = np.random.default_rng(0)

    def drawn(count: int, length: int) -> list[list[int]]:
        rows: list[list[int]] = random.integers(0, base.config.vocab_size // 2, (count, length)).tolist()
        return rows

    with (
        fleet(settings=settings, module=WIDE_ENGINE, warm=False) as engine,
        ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as process,
    ):
        client = opened(engine.home)
        process.submit(bare.start, base.path, weights, conversations, CONTEXT).result()
        client.wait(STARTING)

        def ours(prompts: Sequence[Sequence[int]], tokens: int) -> bare.Measured:
            before = engine.spent() + process_time()
            seconds, sampled = client.answer(prompts, tokens)
            return bare.Measured(seconds, sampled, engine.spent() + process_time() - before)

        def theirs(prompts: Sequence[Sequence[int]], tokens: int) -> bare.Measured:
            return process.submit(bare.answer, prompts, tokens).result()

        sides = {"ours": ours, "bare": theirs}
        for turn in range(repetitions + 1):
            prompts, alone = drawn(conversations, PROMPT), drawn(1, LONG_PROMPT)
            for side in sorted(sides, reverse=bool(turn % 2)):
                measured = sides[side](prompts, TOKENS)
                rates[side].append(measured.tokens / measured.seconds)
                spent[side].append(1e3 * measured.spent / measured.tokens)
                seconds = client.first_token(alone[0]) if side == "ours" else theirs(alone, 1).seconds
                firsts[side].append(1e3 * seconds)
    return [
        Row(
            f"{conversations} conversations at once",
            "tokens/s",
            _counted(rates["ours"]),
            _counted(rates["bare"]),
            "bare sampler",
            higher_is_better=True,
            goal="within 10 %",
        ),
        Row(
            f"processor time of a token, {conversations} at once",
            "ms",
            _counted(spent["ours"]),
            _counted(spent["bare"]),
            "bare sampler",
            goal="within 10 %",
        ),
        Row("time to the first token, alone", "ms", _counted(firsts["ours"]), _counted(firsts["bare"]), "bare sampler"),
    ]


def opened(home: Home) -> Client:
    """Open the API of a running home to a new key."""
    url = json.loads(_marlaas(home, "api", "start", "--json"))["url"]
    key = json.loads(_marlaas(home, "api", "key", "new", "bench", "--json"))["key"]
    parts = urlsplit(url)
    connection = HTTPConnection(parts.hostname or "", parts.port)
    connection.request("GET", "/v1/models", headers={"Authorization": f"Bearer {key}"})
    listed = json.loads(connection.getresponse().read())
    connection.close()
    return Client(url, key, listed["data"][0]["id"])


def _marlaas(home: Home, *words: str) -> str:
    command = [sys.executable, "-P", "-m", "marlaas.app.cli.main", "--home", str(home.root), *words]
    return subprocess.run(command, capture_output=True, text=True, check=True, stdin=subprocess.DEVNULL).stdout


def _counted(values: Sequence[float]) -> Series:
    """All but the first, which warms up."""
    return Series(tuple(values[1:]))
