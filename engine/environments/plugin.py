"""One plugin through its edits: the version that serves, the candidate for it, and the older ones that drain.

Flows in: the plugin's content whenever it may have changed. Flows out: the version that new groups get. A candidate
serves only once it is proven; until then, and if it fails, the last good version goes on.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

from ..errors import EnvironmentFailure, EnvironmentMissing
from ..types import Failure
from .child import BrokenPlugin
from .launch import Folders
from .protocol import EnvironmentEvent, EnvironmentInfo, EventKind
from .serving import Serving
from .source import Source, Stamp
from .wire import Described

OnEvent = Callable[[EnvironmentEvent], None]


class Plugin:
    """Everything that the engine knows of a plugin."""

    def __init__(self, name: str, path: Path, scratch: Path, on_event: OnEvent) -> None:
        self.name = name
        self.path = path
        self.removed = False
        self.seen: Stamp = ()
        """How the files looked when their content was last read."""
        self._snapshots = scratch / "snapshots"
        self._folders = Folders(scratch / "work" / name, scratch / "logs" / f"{name}.log")
        self._on_event = on_event
        self._active: Serving | None = None
        self._older: dict[str, Serving] = {}
        self._failure: Failure | None = None
        self._newest = ""
        """Version of the newest content seen, whether it serves or not."""
        self._candidate: asyncio.Task[None] | None = None

    @property
    def environments(self) -> dict[str, Described]:
        """What the serving version offers."""
        return self._active.environments if self._active is not None else {}

    def processes(self) -> list[int]:
        """Ids of the processes that play its episodes, older versions' first."""
        servings = [*self._older.values(), *([self._active] if self._active is not None else [])]
        return [serving.pid for serving in servings if serving.pid is not None]

    def infos(self) -> tuple[EnvironmentInfo, ...]:
        """One entry per environment; one for the plugin itself where it never served."""
        failure = self._failure or (self._active.quarantine if self._active is not None else None)
        if self._active is None:
            state = "broken" if failure is not None else "loading"
            return (EnvironmentInfo(self.name, "", state, failure=failure, path=str(self.path)),)
        state = "ready"
        if self._active.quarantine is not None:
            state = "broken"
        elif failure is not None:
            state = "stale"
        return tuple(
            EnvironmentInfo(
                name=f"{self.name}/{found.name}",
                version=self._active.version,
                state=state,
                parameters=found.parameters,
                failure=failure,
                path=str(self.path),
                description=found.description,
            )
            for found in self.environments.values()
        )

    def update(self, source: Source) -> asyncio.Task[None] | None:
        """The content may have changed: start to prove it if it is new. The task ends when that is decided."""
        if source.version == self._newest and not self.removed:
            return self._candidate
        self.removed = False
        self._newest = source.version
        if self._candidate is not None:
            self._candidate.cancel()
        if self._active is not None and self._active.version == source.version:
            self._candidate = None
            self._failure = None  # the edit was taken back
            self._tell("loaded", source.version, None)
            return None
        self._candidate = asyncio.get_running_loop().create_task(self._prove(source))
        return self._candidate

    def reject(self, failure: Failure) -> None:
        """The content cannot even be read."""
        if self._failure != failure:
            self._newest = ""
            self._reject("", failure)

    def remove(self) -> None:
        """The file is gone: no new groups; those that play finish."""
        if self.removed:
            return
        self.removed = True
        self._newest = ""
        if self._candidate is not None:
            self._candidate.cancel()
            self._candidate = None
        self._failure = None
        version = self._active.version if self._active is not None else ""
        self._retire()
        self._tell("removed", version, None)

    async def acquire(self, environment: str, version: str | None) -> Serving:
        """The version for a new group, with a lease on it: the newest good one, or the one asked for."""
        if version is None or (self._active is not None and self._active.version == version):
            while self._active is None and self._candidate is not None and not self._candidate.done():
                await asyncio.wait((self._candidate,))
            serving = self._active
            if serving is None:
                raise self._unserved()
        else:
            serving = self._older.get(version) or self._recalled(version)
        serving.leases += 1
        try:
            await self._checked(serving, environment)
        except BaseException:
            serving.release()
            raise
        return serving

    async def stop(self) -> None:
        """End every process of this plugin."""
        candidate = self._candidate
        if candidate is not None:
            candidate.cancel()
            await asyncio.gather(candidate, return_exceptions=True)
        servings = [*self._older.values(), *([self._active] if self._active is not None else [])]
        await asyncio.gather(*(serving.stop("the engine stops") for serving in servings))

    async def _prove(self, source: Source) -> None:
        known = self._older.get(source.version)
        if known is not None:
            await self._return_to(known)
            return
        try:
            path = await asyncio.to_thread(source.write, self._snapshots)
        except OSError as error:  # a full disk
            self._reject(source.version, Failure(f"its snapshot cannot be written: {error}"))
            return
        candidate = self._serving(source.version, path)
        try:
            await candidate.prove()
        except BrokenPlugin as error:
            self._reject(source.version, error.failure)
        except BaseException:
            await candidate.stop("a newer edit came")
            raise
        else:
            self._promote(candidate)

    async def _return_to(self, known: Serving) -> None:
        """An edit was taken back to a version that served before."""
        try:
            await known.warm()
        except BrokenPlugin as error:
            self._reject(known.version, error.failure)
        else:
            del self._older[known.version]
            self._promote(known)

    def _recalled(self, version: str) -> Serving:
        """An older version again, from its snapshot."""
        path = self._snapshots / version / self.path.name
        if not version.isalnum() or not path.exists():
            raise EnvironmentMissing(f"There is no version {version!r} of {self.name} any more.")
        serving = self._older[version] = self._serving(version, path)
        serving.retired = True
        return serving

    async def _checked(self, serving: Serving, environment: str) -> None:
        """Make sure that a version can play an environment."""
        try:
            await serving.warm()
        except BrokenPlugin as error:
            raise EnvironmentFailure(f"{self.name} does not serve: {said(error.failure)}.") from error
        if environment not in serving.environments:
            raise EnvironmentMissing(f"Version {serving.version} of {self.name} has no environment {environment!r}.")

    def _serving(self, version: str, path: Path) -> Serving:
        return Serving(version, path, self._folders, self._tell)

    def _promote(self, serving: Serving) -> None:
        self._retire()
        serving.retired = False
        self._active = serving
        self._failure = None
        self._candidate = None
        self._tell("loaded", serving.version, None)

    def _retire(self) -> None:
        retired, self._active = self._active, None
        if retired is not None:
            retired.retired = True
            self._older[retired.version] = retired
            retired.stop_if_done()

    def _reject(self, version: str, failure: Failure) -> None:
        self._failure = failure
        self._candidate = None
        self._tell("rejected", version, failure)

    def _unserved(self) -> EnvironmentFailure:
        failure = self._failure or Failure("its file was removed")
        return EnvironmentFailure(f"{self.name} does not serve: {said(failure)}.")

    def _tell(self, kind: EventKind, version: str, failure: Failure | None) -> None:
        self._on_event(EnvironmentEvent(kind, self.name, version, failure))


def said(failure: Failure) -> str:
    """A failure in one line, place first."""
    return f"{failure.file}:{failure.line}: {failure.message}" if failure.file else failure.message
