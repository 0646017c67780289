"""The address of one episode: opened when it is first asked for, and closed when the episode is over."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from types import TracebackType

from marlaas.plugins.messages import Answer, Endpoint

from ...environments import Answering, Listener
from ...errors import ConfigError
from ...gateway import Address, Endpoints
from ..conversation import Sampled
from .program import Program


class Hosting:
    """One episode's programs and their address."""

    def __init__(self, endpoints: Endpoints | None, make: Callable[[Listener], Program]) -> None:
        """``make``: makes what answers there; None of ``endpoints``: there are none."""
        self._endpoints = endpoints
        self._make: Callable[[Listener], Program] | None = make
        """None once the episode is over: it knows the episode, which knows this. As a ring they would stay until Python
        looks for such, in the middle of its work, and each episode would leave one."""
        self._program: Program | None = None
        self._address: Address | None = None
        self._opening = asyncio.Lock()

    async def open(self, listener: Listener) -> Endpoint:
        """The episode's address, the same each time. Raises ``ConfigError`` where the engine serves none."""
        if self._endpoints is None:
            raise ConfigError("The engine serves no endpoint.", "Play the episode in an engine that serves endpoints.")
        async with self._opening:
            if self._make is None:
                raise ConfigError("The episode is over.")
            if self._address is None:
                program = self._make(listener)
                address = await self._endpoints.open(program)
                if self._make is None:
                    self._endpoints.close(address)
                    raise ConfigError("The episode is over.")
                self._program, self._address = program, address
        return Endpoint(f"{self._address.url}/v1", self._address.key)

    def close(self) -> None:
        """The episode is over: what its programs still wait for, or ask later, is refused."""
        self._make = None
        if self._program is not None:
            self._program.close()
            self._program = None
        if self._address is not None and self._endpoints is not None:
            self._endpoints.close(self._address)
            self._address = None


class Canned:
    """Answers an episode and its programs without a sampler, until its block ends: implements ``Floor``."""

    def __init__(self, endpoints: Endpoints | None, answer: Answer) -> None:
        self._hosting = Hosting(endpoints, lambda listener: Program(self, listener, False, lambda name: None))
        self._answering = Answering(answer, endpoint=self._hosting.open)

    def __enter__(self) -> Answering:
        return self._answering

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self._hosting.close()

    def sampled(self, agent: str, branch: int, turn: int) -> Sampled:
        """See ``Floor``."""
        return Sampled("canned", 0)

    def drop(self, agent: str, branch: int) -> None:
        """See ``Floor``."""

    def rest(self, agent: str, branch: int) -> None:
        """See ``Floor``."""

    def text(self, token: int) -> str:
        """See ``Floor``."""
        return ""
