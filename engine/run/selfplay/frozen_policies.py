"""Who plays in a task without being trained there: frozen versions, the bare base, pools of earlier versions.

An evaluation takes the versions that it measures from here, too.

They are served for as long as the task runs. Files of blank adapters are made where a policy's own beginning, or the
base, is to speak.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack, suppress
from dataclasses import replace
from itertools import count
from pathlib import Path

from ...adapters import begin, checksum, is_there, read_peft_folder, write_blank
from ...errors import AdapterError
from ...fleet import Services
from ...spec import BASE, TaskSpec, inside, start_folder
from ...store import Version
from ..serving.published import PublishedVersions
from ..trained_policy import TrainedPolicy
from .opponent_pool import OpponentPool
from .participants import Opponents


class FrozenPolicies:
    """The frozen policies of one task, in one incarnation of the workers."""

    def __init__(
        self, services: Services, task: int, spec: TaskSpec, policies: Sequence[TrainedPolicy], kind: str = "frozen"
    ) -> None:
        """``kind`` is part of the names under which they are served: two holders of one version do not share a name."""
        self._kind = kind
        self._services = services
        self._task = task
        self._spec = spec
        self._policies = {policy.name: policy for policy in policies}
        self._published = PublishedVersions(services.endpoints)
        self._made: list[Path] = []
        self._numbers = count()

    async def enter(self, stack: AsyncExitStack) -> Opponents:
        """Have all of them served until ``stack`` is left. Raises ``AdapterError`` for one that is gone."""
        frozen = {}
        for name, words in self._frozen().items():
            frozen[name] = await self.version(words)
            shares = self._services.router.shares(self._task, name)
            await stack.enter_async_context(self._published.lent(frozen[name], shares))
        pools, hosts = {}, dict.fromkeys(frozen, self._published)
        for name, policy in self._spec.policies.items():
            if policy.pool:
                own = self._policies[policy.pool]
                pools[name] = OpponentPool(name, policy, self._spec.train.seed, self._kept(own), self._scores(own))
                hosts[name] = own.published
        return Opponents(frozen, pools, hosts)

    async def leave(self) -> None:
        """Free the samplers, and remove the files that were written for them."""
        await asyncio.gather(self._published.clear(), return_exceptions=True)
        for path in self._made:
            with suppress(OSError):  # then the task's next start removes it
                path.unlink()

    def _frozen(self) -> dict[str, str]:
        """By the name under which matches know it, the words that say which version plays."""
        frozen = {name: policy.frozen for name, policy in self._spec.policies.items() if policy.frozen}
        others = (words for words in self._spec.eval.agents.values() if words not in self._spec.policies)
        return frozen | {words: words for words in others}

    async def version(self, words: str) -> Version:
        """The version that words of the task file mean, to be served. Raises ``AdapterError`` for one that is gone."""
        own = inside(words, self._spec)
        if words == BASE and not self._policies:
            return await self._bare()
        if words == BASE or own is not None:
            policy = self._policies[own] if own is not None else next(iter(self._policies.values()))
            first = self._services.store.versions.first(policy.number)
            if own is not None and policy.given:
                return self._lent(first, words)
            return await self._blank(first, policy, words)
        folder = start_folder(words)
        if folder is not None:
            return await self._from_folder(folder)
        lent = self._services.store.versions.start(self._task, words)
        if lent is None:
            raise AdapterError(f"Nobody looked up the version {words!r} that this task plays with.")
        return self._lent(lent, words)

    def _lent(self, version: Version, words: str) -> Version:
        """A version under a name of this task's own: other tasks may serve it, too, and retire it when they end."""
        if not is_there(Path(version.path)):
            raise AdapterError(
                f"The version {version.name}, which this task plays with as {words!r}, was deleted.",
                "Submit the task with another one.",
            )
        return replace(version, name=self._name(words, version.checksum))

    async def _blank(self, first: Version, policy: TrainedPolicy, words: str) -> Version:
        """A version whose adapter adds nothing to the base, as that of an untrained policy."""
        path = self._path()
        digest = await asyncio.to_thread(write_blank, Path(policy.published.now().path), path)
        return replace(first, name=self._name(words, digest), number=0, path=str(path), checksum=digest)

    async def _bare(self) -> Version:
        path = self._path()
        digest = await asyncio.to_thread(self._services.write_bare, path)
        return Version(0, 0, 0, self._name(BASE, digest), digest, str(path), path.stat().st_size)

    async def _from_folder(self, folder: Path) -> Version:
        path, fingerprint = self._path(), self._services.store.fingerprint
        state = await asyncio.to_thread(read_peft_folder, folder)
        if fingerprint and state.header.base != fingerprint:
            raise AdapterError("the adapter belongs to another base than this home's.", where=str(folder))
        await asyncio.to_thread(begin, state, path)
        digest = checksum(state.adapter)
        return Version(0, 0, 0, self._name(folder.name, digest), digest, str(path), path.stat().st_size)

    def _name(self, words: str, digest: str) -> str:
        """A version name for these bytes in this incarnation: a folder may hold other bytes after a pause, and a name
        never stands for two versions."""
        plain = "".join(c if c.isalnum() else "-" for c in words)[:40]
        return f"task-{self._task}/{self._kind}-{plain}-{digest}-i{self._services.store.incarnation}"

    def _path(self) -> Path:
        """The path of a new file, which ``leave`` removes."""
        folder, incarnation = self._services.home.adapters / f"task-{self._task}", self._services.store.incarnation
        path = folder / f"{self._kind}-{next(self._numbers)}-i{incarnation}.safetensors"
        self._made.append(path)
        return path

    def _kept(self, policy: TrainedPolicy) -> Callable[[], Sequence[Version]]:
        """Lists the policy's versions whose files are on the disk: somebody may have removed some by hand."""
        versions = self._services.store.versions
        return lambda: [version for version in versions.candidates(policy.number) if is_there(Path(version.path))]

    def _scores(self, policy: TrainedPolicy) -> Callable[[], dict[int, float]]:
        return lambda: self._services.store.evaluations.scores(policy.number)
