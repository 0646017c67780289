"""One process that scores: any version of its interpreter, one request at a time, so what it dies of is known."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, cast

from marlaas.plugins.scoring import Transcript

from ...trajectories import Failure
from ..protocol import EpisodeOutcome, Loaded, Ranking, Unscored
from .child import TOO_LONG, Child
from .launch import Folders
from .wire import encode_load, encode_rank, encode_score


@dataclass(frozen=True)
class Loadable:
    """A version as a scoring process needs it."""

    number: int
    """By which the processes know it; no other version has it, not even one of the same content."""
    path: Path
    """What to import."""
    scratch: Path
    """Where it may write."""
    log: Path
    """Where what it prints goes."""
    folders: Folders = Folders(Path(), Path())  # noqa: RUF009  # it is frozen
    """What it runs on."""
    shares: bool = True
    """Whether its processes may have others' code in them: then each version's prints are sent to its log."""


class ScoringChild(Child):
    """Such a process, until it is dead."""

    scores: ClassVar[bool] = True

    async def take_in(self, version: Loadable, patience: float) -> Loaded | EpisodeOutcome:
        """Have a version imported within ``patience`` seconds of the process's own; an outcome says why that failed."""
        self._serves(version, patience)
        path, scratch, own = await self._process.placed(version.path, version.scratch, version.log)
        log = str(own) if version.shares else ""
        record = encode_load(0, version.number, path, scratch, log)
        ended = asyncio.ensure_future(
            self._run(lambda number: record | {"episode": number}, None, (Loaded, EpisodeOutcome))
        )
        try:
            if not await self._imported(ended, patience):
                return EpisodeOutcome("error", failure=Failure(TOO_LONG.format(patience)))
            return cast(Loaded | EpisodeOutcome, ended.result())
        finally:
            if not ended.done():  # late, or nobody waits for it any more
                self.kill("it did not stop importing")
                ended.cancel()
                await asyncio.gather(ended, return_exceptions=True)

    def forget(self, number: int) -> None:
        """Have the process let go of a version."""
        self._send({"op": "forget", "version": number})

    async def score(
        self, version: Loadable, environment: str, played: Unscored, transcript: Transcript, timeout: float
    ) -> EpisodeOutcome:
        """Score what was played. Raises ``ValueError`` where that is too large to be sent.

        ``timeout``: seconds of the score function's own, after which the process interrupts it.
        """
        self._serves(version, timeout)
        ended = self._run(
            lambda number: encode_score(number, version.number, environment, played, transcript, timeout),
            None,
            (EpisodeOutcome,),
        )
        return cast(EpisodeOutcome, await ended)

    async def rank(
        self, version: Loadable, environment: str, members: Sequence[EpisodeOutcome], timeout: float
    ) -> Ranking | EpisodeOutcome:
        """Compare the members of a group; an outcome says why that failed. Raises as ``score``."""
        self._serves(version, timeout)
        ended = self._run(
            lambda number: encode_rank(number, version.number, environment, members, timeout),
            None,
            (Ranking, EpisodeOutcome),
        )
        return cast(Ranking | EpisodeOutcome, await ended)

    def _serves(self, version: Loadable, seconds: float) -> None:
        """What is under way from here on is this version's, and may take so long."""
        self._allowed, self.spent = seconds, None
        self._folder = self._process.folder(version.path)
        self._process.log = version.log
