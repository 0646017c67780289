"""What the board remembers: conversations that hold memory, and the turn that one of them is sampling."""

from __future__ import annotations

from concurrent.futures import Future
from dataclasses import dataclass, field

import numpy as np

from ...types import Tokens
from ..choose import uniforms
from ..protocol import Finish, SampleRequest, SampleResult
from .versions import Version


@dataclass
class Conversation:
    """A name, the tokens seen so far, and how many of them the sequence's memory holds."""

    name: str
    slot: int | None = None
    """Sequence id; None while it waits for one."""
    version: str = ""
    """Under which the memory was computed."""
    tokens: Tokens = field(default_factory=lambda: np.empty(0, np.int32))
    cached: int = 0
    turn: Turn | None = None


class Turn:
    """One request on its way, and what it has sampled so far."""

    def __init__(
        self,
        request: SampleRequest,
        conversation: Conversation,
        version: Version,
        room: int,
        answer: Future[SampleResult],
    ) -> None:
        """``room`` is how many tokens may be sampled at most, 1 or more."""
        self.conversation = conversation
        self.version = version
        self.answer = answer
        self.prompt = request.tokens
        self.temperature = request.temperature
        self.sampled: list[int] = []
        self.key = (version.name, request.tokens.tobytes())
        """Turns with equal keys share their prompt's computation."""
        self._logprobs: list[float] = []
        self._stop = frozenset(request.stop)
        self._room = room
        self._noise = uniforms(request.seed, len(request.tokens), len(request.tokens) + room).tolist()

    @property
    def noise(self) -> float:
        """For the next token."""
        return float(self._noise[len(self.sampled)])

    @property
    def last(self) -> int:
        """The token to decode next: the newest, of which the memory does not know yet."""
        return self.sampled[-1] if self.sampled else int(self.prompt[-1])

    def accept(self, token: int, logprob: float) -> Finish | None:
        """Take a sampled token; says why the turn has ended, or None if it goes on."""
        self.sampled.append(token)
        self._logprobs.append(logprob)
        if token in self._stop:
            return "stop"
        return "length" if len(self.sampled) == self._room else None

    def result(self, finish: Finish) -> SampleResult:
        """What goes back to the caller."""
        return SampleResult(
            tokens=np.array(self.sampled, np.int32),
            logprobs=np.array(self._logprobs, np.float32),
            finish=finish,
            version=self.version.name,
            checksum=self.version.checksum,
        )
