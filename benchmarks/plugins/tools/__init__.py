"""Sums in several turns; after each, a tool over HTTP shows if the reply is right, and takes its time.

    user       47+85=
    assistant  132
    (GET /add?left=47&right=85&said=132&wait=0.4 -> {"sum": 132, "right": true})
    user       12+30=
    assistant  42

How long the tool takes is drawn before the first turn from the episode's own noise: the same instance and member
waits the same whatever the policy says, so two runs of one workload wait the same seconds. Held-out episodes call no
tool: measuring is not what is timed.
"""

import asyncio
import json
import math
from random import Random
from urllib.parse import quote

from marlaas.plugins import Episode, env

FEWEST = 2
"""Turns of an episode."""


@env
async def tools(
    ep: Episode, digits: int = 2, mean: float = 0.5, sigma: float = 1.0, most: int = 6, tool: str = ""
) -> float:
    """Adds numbers of this many digits, in up to `most` turns.

    The tool at `tool` (HOST:PORT) takes a lognormal time after each turn, `mean` seconds on average; without an address
    replies are judged here, at once.
    """
    low, high = 10 ** (digits - 1), 10**digits - 1
    turns = ep.rng.randint(FEWEST, most)
    waits = latencies(ep.noise, turns, mean, sigma)
    right = 0
    calculator = Calculator(tool if ep.split == "train" else "")
    try:
        for wait in waits:
            a, b = ep.rng.randint(low, high), ep.rng.randint(low, high)
            reply = await ep.ask(f"{a}+{b}=", max_tokens=digits + 2)
            right += await calculator.judge(a, b, reply.text, wait)
    finally:
        calculator.close()
    ep.log(waited=sum(waits))
    return right / turns


class Calculator:
    """The tool, over one connection for an episode."""

    def __init__(self, address: str) -> None:
        self._address = address
        self._streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None

    async def judge(self, left: int, right: int, said: str, wait: float) -> bool:
        """Whether what was said is the sum."""
        if not self._address:
            return said == str(left + right)
        if self._streams is None:
            host, _, port = self._address.partition(":")
            self._streams = await asyncio.open_connection(host, int(port))
        reader, writer = self._streams
        target = f"/add?left={left}&right={right}&said={quote(said)}&wait={wait:.6f}"
        writer.write(f"GET {target} HTTP/1.1\r\nHost: {self._address}\r\n\r\n".encode())
        head = (await reader.readuntil(b"\r\n\r\n")).decode()
        length = int(head.lower().split("content-length:")[1].split()[0])
        verdict = json.loads(await reader.readexactly(length))
        if "error" in verdict:
            raise ValueError(f"The tool refused {target}: {verdict['error']}")
        return bool(verdict["right"])

    def close(self) -> None:
        """Give the connection up."""
        if self._streams is not None:
            self._streams[1].close()


def latencies(noise: Random, turns: int, mean: float, sigma: float) -> list[float]:
    """Seconds after each turn; `sigma` is the deviation of their logarithm: 1 puts 1 % beyond six times the mean."""
    if not mean:
        return [0.0] * turns
    return [noise.lognormvariate(math.log(mean) - sigma**2 / 2, sigma) for _ in range(turns)]
