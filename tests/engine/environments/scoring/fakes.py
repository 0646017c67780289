"""A pool whose processes are fakes, and versions that ask it for scores."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import cast

from marlaas.engine.environments.budget import ProcessBudget
from marlaas.engine.environments.process.child import BrokenPlugin, Owner
from marlaas.engine.environments.process.launch import Folders, Runtime
from marlaas.engine.environments.process.scorer import Loadable, ScoringChild
from marlaas.engine.environments.process.wire import Described, Spent
from marlaas.engine.environments.protocol import EpisodeOutcome, Loaded, Unscored
from marlaas.engine.environments.recorder import Recorder
from marlaas.engine.environments.scoring.pool import ScoringPool, ScoringPools
from marlaas.engine.environments.scoring.version import VersionScoring
from marlaas.engine.environments.sizing import Workers
from marlaas.engine.trajectories import Failure
from marlaas.plugins.messages import Answer
from marlaas.plugins.scoring import Transcript

FOUND = Described("e", 60.0, "", (), scored=True, score_timeout=5.0)
OK = EpisodeOutcome("ok", {"agent": 1.0})
DIED = EpisodeOutcome("error", failure=Failure("killed"), died=True)
REFUSED = EpisodeOutcome("error", failure=Failure("it was registered before"))


@dataclass(eq=False)
class FakeChild:
    """A process whose scoring ends when the test says so."""

    pid: int
    owner: Owner
    dead: Failure | None = None
    full: bool = False
    left: bool = False
    loaded: list[int] = field(default_factory=list)
    forgotten: list[int] = field(default_factory=list)
    scored: list[int] = field(default_factory=list)
    """Numbers of the versions whose episodes it was given."""
    verdict: asyncio.Future[EpisodeOutcome] = field(default_factory=asyncio.Future)
    refuses: Callable[[FakeChild, int], bool] = lambda child, number: False
    gone: bool = False
    node: str = ""
    lost: bool = False
    spent: Spent | None = None

    async def take_in(self, version: Loadable, patience: float) -> Loaded | EpisodeOutcome:
        self.loaded.append(version.number)
        return REFUSED if self.refuses(self, version.number) else Loaded()

    def forget(self, number: int) -> None:
        self.forgotten.append(number)

    async def score(
        self, version: Loadable, environment: str, played: Unscored, transcript: Transcript, timeout: float
    ) -> EpisodeOutcome:
        self.scored.append(version.number)
        return await asyncio.shield(self.verdict)

    def interrupt(self) -> None: ...

    def kill(self, reason: str, cut: bool = False) -> None:
        self.die(EpisodeOutcome("cancelled" if cut else "error", failure=Failure(reason)))

    def die(self, outcome: EpisodeOutcome = DIED) -> None:
        self.dead = outcome.failure
        if not self.verdict.done():
            self.verdict.set_result(outcome)

    async def wait(self) -> None:
        self.gone = True


class Pool:
    """A pool of fakes."""

    def __init__(self, cores: int = 64, room: int | None = None) -> None:
        self.children: list[FakeChild] = []
        self.broken: BrokenPlugin | None = None
        self.may_start = asyncio.Event()
        self.may_start.set()
        self.refuses: Callable[[FakeChild, int], bool] = lambda child, number: False
        self.budget = ProcessBudget(cores)
        self.pool = ScoringPool(
            self._start, True, self.budget, lambda: None if room is None else max(0, room - self.pool.size)
        )
        self.alone: list[ScoringPool] = []
        """Those of single versions."""

    def version(self, most: int | None = None) -> Version:
        return Version(self, most)

    async def _start(self, owner: Owner, further: bool) -> ScoringChild:
        if self.broken is not None:
            raise self.broken
        child = FakeChild(len(self.children), owner, refuses=self.refuses)
        self.children.append(child)
        await self.may_start.wait()
        if self.broken is not None:
            child.die()
            raise self.broken
        return cast(ScoringChild, child)

    def of(self, path: Path, folders: Folders, alone: bool = False) -> ScoringPool:
        """See ``ScoringPools``."""
        if alone:
            self.alone.append(ScoringPool(self._start, False, self.budget))
            return self.alone[-1]
        return self.pool

    @property
    def living(self) -> list[FakeChild]:
        return [child for child in self.children if child.dead is None]

    async def until_started(self, count: int) -> None:
        while len(self.children) < count:
            await asyncio.sleep(0)
        await settled()


class Version:
    """A version of some plugin."""

    def __init__(self, made: Pool, most: int | None) -> None:
        self.told: list[Failure] = []
        runtime = Runtime(workers=None if most is None else Workers(1, most))
        folders = Folders(Path("work"), Path("log"), runtime)
        self.scoring = VersionScoring(Path("p.py"), folders, self.told.append, cast(ScoringPools, made))
        self.number = self.scoring.number
        self.known = self.scoring._version
        """What the pool knows of it."""

    def score(self) -> asyncio.Task[EpisodeOutcome]:
        recorder = Recorder(cast(Answer, None))
        return asyncio.ensure_future(self.scoring.outcome(FOUND, Unscored(None), recorder))


async def settled() -> None:
    for _ in range(20):
        await asyncio.sleep(0)
