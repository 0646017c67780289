"""One plugin through its edits: serving, candidate and draining versions.

The last good version continues until a candidate's proof.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from ..errors import EnvironmentFailure, EnvironmentMissing
from ..trajectories import Failure
from .dependencies import Interpreters, Refused, Waiting
from .files import Snapshots, Source, Stamp, read_source, shown
from .health import Standstill
from .pool import ProcessBudget
from .process.child import BrokenPlugin
from .process.launch import Folders, Runtime
from .process.wire import Described
from .protocol import EnvironmentEvent, EnvironmentInfo, EventKind
from .served_version import ServedVersion

SLOW = 1.0

OnEvent = Callable[[EnvironmentEvent], None]


class Plugin:
    """One plugin with all its versions."""

    def __init__(
        self,
        name: str,
        path: Path,
        scratch: Path,
        interpreters: Interpreters,
        on_event: OnEvent,
        budget: ProcessBudget,
        removed: bool = False,
        earlier: Callable[[str], Sequence[Standstill]] = lambda version: (),
    ) -> None:
        """``removed``: its files are gone, but tasks are pinned to a version. ``earlier``: a version that only failed
        in an earlier engine."""
        self.name = name
        self.path = path
        self.removed = removed
        self.seen: Stamp = ()
        self._snapshots = Snapshots(scratch / "snapshots")
        self._folders = Folders.of(scratch, name)
        self._interpreters = interpreters
        self._on_event = on_event
        self._budget = budget
        self._earlier = earlier
        self._active: ServedVersion | None = None
        self._others: list[ServedVersion] = []
        """Draining or recalled versions, the newest last."""
        self._failure: Failure | None = None
        self._newest = ""
        self._candidate: asyncio.Task[None] | None = None
        self._slow = False
        self._waits = ""
        self._waiting: asyncio.Task[None] | None = None
        self._overtaken: set[asyncio.Task[None]] = set()

    @property
    def environments(self) -> dict[str, Described]:
        return self._active.environments if self._active is not None else {}

    @property
    def proving(self) -> asyncio.Task[None] | None:
        return self._candidate if self._candidate is not None and not self._candidate.done() else None

    @property
    def installs(self) -> bool:
        return self._waits == "building"

    def processes(self) -> list[int]:
        return [pid for serving in self._servings() for pid in serving.pids]

    def versions(self) -> set[str]:
        held = {serving.version for serving in self._servings() if serving.leases or not serving.retired}
        return held | {self._newest}

    def infos(self) -> tuple[EnvironmentInfo, ...]:
        serving, path = self._active, shown(str(self.path))
        if serving is None:
            failure = None if self._slow else self._failure
            state = self._waits or ("broken" if failure is not None else "loading")
            return (EnvironmentInfo(self.name, "", state, failure=failure, path=path),)
        found = []
        for environment in serving.environments.values():
            state, failure = self._state(serving, environment.name)
            found.append(
                EnvironmentInfo(
                    name=f"{self.name}/{environment.name}",
                    version=serving.version,
                    state=state,
                    parameters=environment.parameters,
                    agents=environment.agents,
                    rows=environment.rows,
                    program=environment.program,
                    context=environment.context,
                    failure=failure,
                    path=path,
                    description=environment.description,
                    crew=serving.crew,
                )
            )
        for name, failure in serving.refused.items():
            found.append(EnvironmentInfo(f"{self.name}/{name}", serving.version, "broken", failure=failure, path=path))
        return tuple(found)

    def _state(self, serving: ServedVersion, environment: str) -> tuple[str, Failure | None]:
        if self._slow:
            return "loading", None
        if rest := serving.health.resting:
            return "broken", self._failure or rest
        if self._failure is not None:
            return "stale", self._failure
        if failing := serving.health.failing(environment):
            return "failing", failing
        return "ready", None

    def update(self, source: Source) -> asyncio.Task[None] | None:
        if source.version == self._newest and not self.removed:
            return self._candidate
        self.removed = False
        self._newest = source.version
        self._overtake()
        if self._active is not None and self._active.version == source.version:
            self._failure = None  # the edit was taken back
            self._tell("loaded", source.version, None)
            return None
        self._candidate = asyncio.get_running_loop().create_task(self._prove(source))
        return self._candidate

    def reload(self, source: Source) -> asyncio.Task[None]:
        """Prove even known content; the serving version continues until then."""
        self._newest, self.removed = source.version, False
        self._overtake()
        self._let_go(source.version)
        self._candidate = asyncio.get_running_loop().create_task(self._prove(source))
        return self._candidate

    def reject(self, failure: Failure) -> None:
        self.removed = False
        if self._failure != failure:
            self._newest = ""
            self._overtake()
            self._reject("", failure)

    def remove(self) -> None:
        """No new groups begin."""
        if self.removed:
            return
        self.removed = True
        self._newest = ""
        self._overtake()
        self._failure = None
        version = self._active.version if self._active is not None else ""
        self._retire()
        self._tell("removed", version, None)

    async def acquire(self, environment: str, version: str | None) -> ServedVersion:
        if version is None:
            while self._active is None and self._candidate is not None and not self._candidate.done():
                await asyncio.wait((self._candidate,))
            serving = self._active
            if serving is None:
                raise unserved(self.name, self._failure or Failure("its file was removed"))
        else:
            serving = self.serving(version) or await self._recalled(version)
        serving.hold(by_version=version is not None)
        try:
            await self._checked(serving, environment)
        except BaseException:
            serving.release(by_version=version is not None)
            raise
        return serving

    def serving(self, version: str | None = None) -> ServedVersion | None:
        if version is None or (self._active is not None and self._active.version == version):
            return self._active
        return self._other(version)

    async def stop(self) -> None:
        self._overtake()
        await asyncio.gather(*self._overtaken, return_exceptions=True)
        await asyncio.gather(*(serving.stop("the engine stops") for serving in self._servings()))

    def forget(self) -> None:
        self._others = [serving for serving in self._others if not serving.over]

    def _other(self, version: str) -> ServedVersion | None:
        same = (serving for serving in reversed(self._others) if serving.version == version)
        return next((serving for serving in same if not serving.replaced), None)

    async def _prove(self, source: Source) -> None:
        known = self._other(source.version)
        if known is not None:
            await self._return_to(known)
            return
        try:
            path = await asyncio.to_thread(self._snapshots.write, source)
            code = await asyncio.to_thread(lambda: source.code)
        except OSError as error:  # a full disk
            self._reject(source.version, Failure(f"its snapshot cannot be written: {error}"))
            return
        try:
            runtime = await self._interpreters.of(
                source, lambda message: self._tell("unconfined", source.version, Failure(message))
            )
        except Refused as error:
            self._reject(source.version, error.failure)
            return
        except Waiting as error:
            self._postpone(source, error)
            return
        candidate = self._serving(source.version, code, path, runtime)
        slow = asyncio.get_running_loop().call_later(SLOW, self._takes_long, source.version)
        try:
            await candidate.prove()
        except BrokenPlugin as error:
            self._reject(source.version, error.failure)
        except BaseException:
            await candidate.stop("a newer edit came")
            raise
        else:
            self._promote(candidate)
        finally:
            slow.cancel()

    def _takes_long(self, version: str) -> None:
        self._slow = True
        self._tell("loading", version, None)

    def _overtake(self) -> None:
        self._slow = False
        for task in (self._candidate, self._waiting):
            if task is not None:
                task.cancel()
                self._overtaken.add(task)
                task.add_done_callback(self._overtaken.discard)
        self._candidate, self._waiting, self._waits = None, None, ""

    def _postpone(self, source: Source, waiting: Waiting) -> None:
        async def wait() -> None:
            await waiting.over()
            self._failure, self._waiting, self._waits = None, None, ""
            self._candidate = asyncio.get_running_loop().create_task(self._prove(source))

        self._failure, self._candidate, self._waits = Failure(str(waiting)), None, waiting.state
        self._waiting = asyncio.get_running_loop().create_task(wait())
        self._tell(waiting.state, source.version, self._failure)

    async def _return_to(self, known: ServedVersion) -> None:
        known.hold(by_version=False)
        try:
            await known.warm()
        except BrokenPlugin as error:
            self._reject(known.version, error.failure)
        else:
            self._others.remove(known)
            self._promote(known)
        finally:
            known.release(by_version=False)

    async def _recalled(self, version: str) -> ServedVersion:
        kept = self._snapshots.find(version)
        if kept is None or kept.plugin != self.name:
            raise EnvironmentMissing(f"There is no version {version!r} of {self.name} any more.")
        try:
            source = await asyncio.to_thread(read_source, kept.path)
            code = await asyncio.to_thread(lambda: source.code)
            runtime = await self._interpreters.of(source)
        except (Refused, Waiting) as error:
            raise EnvironmentFailure(f"{self.name}, version {version}: {error}.") from None
        if known := self.serving(version):  # another call has started it meanwhile
            return known
        serving = self._serving(version, code, kept.path, runtime)
        serving.retired = True
        self._others.append(serving)
        return serving

    async def _checked(self, serving: ServedVersion, environment: str) -> None:
        try:
            await serving.warm()
        except BrokenPlugin as error:
            raise unserved(self.name, error.failure) from error
        if refused := serving.refused.get(environment):
            raise unserved(f"{self.name}/{environment}", refused)
        if environment not in serving.environments:
            raise EnvironmentMissing(f"Version {serving.version} of {self.name} has no environment {environment!r}.")

    def _serving(self, version: str, code: str, path: Path, runtime: Runtime) -> ServedVersion:
        folders = replace(self._folders, runtime=runtime)
        serving = ServedVersion(version, path, folders, self._tell, self._budget, code)
        serving.health.remember(self._earlier(version))
        return serving

    def _servings(self) -> list[ServedVersion]:
        return [*self._others, *([self._active] if self._active is not None else [])]

    def _promote(self, serving: ServedVersion) -> None:
        self._retire()
        serving.promote()
        self._active = serving
        self._failure = None
        self._candidate, self._slow = None, False
        self._tell("loaded", serving.version, None)

    def _retire(self) -> None:
        retired, self._active = self._active, None
        if retired is not None:
            self._let_go(retired.version)
            self._others.append(retired)
            retired.retire()

    def _let_go(self, version: str) -> None:
        """An edit that is taken back does not return to the processes of a version that was started again."""
        for serving in self._others:
            serving.replaced = serving.replaced or serving.version == version

    def _reject(self, version: str, failure: Failure) -> None:
        self._failure = failure
        self._candidate, self._slow = None, False
        self._tell("rejected", version, failure)

    def _tell(self, kind: EventKind, version: str, failure: Failure | None) -> None:
        self._on_event(EnvironmentEvent(kind, self.name, version, failure))


def unserved(plugin: str, failure: Failure) -> EnvironmentFailure:
    """The error that no version serves: place, then reason; the same words each time, so reported once.

    Place: file and line, else the plugin.
    """
    return EnvironmentFailure(f"{said(failure)}." if failure.file else f"{plugin}: {said(failure)}.")


def said(failure: Failure) -> str:
    """A failure in one line, place first, without a full stop."""
    place = f"{failure.file}:{failure.line}" if failure.line else failure.file
    return (f"{place}: {failure.message}" if place else failure.message).rstrip(".")
