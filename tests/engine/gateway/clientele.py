"""Two tenants with versions on the disk, and clients of theirs: samplers in this process, everything else is real."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, cast

from marlaas.engine.adapters.statefile import checksum, read_state
from marlaas.engine.fairness.line import Ledger, Line
from marlaas.engine.gateway.keys import Identity
from marlaas.engine.gateway.serving.clients import Serving, reference
from marlaas.engine.home.paths import TINY_BASE, Home
from marlaas.engine.machine.lone_sampler import write_bare
from marlaas.engine.models.find import BaseModel, load_base
from marlaas.engine.queue.submission.taskfile import submission
from marlaas.engine.rollout.episodes import Rollout
from marlaas.engine.rollout.renderer import Renderer
from marlaas.engine.rollout.slots import SamplerEndpoint, SamplerSlots
from marlaas.engine.samplers.protocol import Sampler
from marlaas.engine.spec.task import NamedPolicySpec, TaskSpec
from marlaas.engine.store.rows import VersionRow, Yielding
from marlaas.engine.store.store import Store
from marlaas.engine.store.submissions import submit
from marlaas.engine.store.versions import NewVersion
from marlaas.engine.wire import Answered, Answerer, Chat, Complete, Message, Piece, Wishes

from ..rollout.fake import FakeSampler
from ..rollout.random_base import write_adapter

VOCABULARY = 300
"""Ids that the fake sampler knows: all that the shipped base has a text for are below."""
CONTEXT = 512


def client(tenant: str, key: int = 1) -> Identity:
    """Who asks."""
    return Identity(key, tenant, ("chat",))


@dataclass
class Machine:
    """Live samplers, as ``fleet.Services`` hands them over."""

    home: Home
    rollout: Rollout
    endpoints: Mapping[str, SamplerEndpoint]
    write_bare: Callable[[Path], str]


class Crew:
    """Stands in for the supervisor of the workers."""

    def __init__(self, machine: Machine) -> None:
        self.machine: Machine | None = machine
        self.yielding: Yielding | None = None
        self.woken = 0
        self._there = asyncio.Event()
        self._there.set()

    @property
    def ready(self) -> bool:
        return self._there.is_set()

    async def services(self) -> Any:
        await self._there.wait()
        assert self.machine is not None
        return self.machine

    def wake(self) -> None:
        self.woken += 1
        self.yielding = None

    def leave(self) -> None:
        """The workers end."""
        self._there.clear()

    def come(self, machine: Machine) -> None:
        """Others take their place."""
        self.machine = machine
        self._there.set()


@dataclass
class Clientele:
    """The tenants *lab*, with the tasks 1 and 2, and *club*, with task 3, in a home of their own."""

    folder: Path
    base: BaseModel = field(default_factory=lambda: load_base(TINY_BASE))
    ledger: Ledger = field(default_factory=Ledger)

    def __post_init__(self) -> None:
        self.home = Home(self.folder / "home").create()
        self.renderer = Renderer(self.base.path)
        self.store = Store(self.home.database, "tiny", self.base.fingerprint)
        duel = TaskSpec(
            "lab", "duel", "duel", policies={"player": NamedPolicySpec(), "judge": NamedPolicySpec()}, agents={}
        )
        specs = [TaskSpec("lab", "sums", "arithmetic"), duel, TaskSpec("club", "secret-sums", "arithmetic")]
        submit(self.home.database, [submission(spec) for spec in specs])
        seeds = itertools.count()
        for task, policy, count in ((1, "policy", 4), (2, "player", 2), (2, "judge", 1), (3, "policy", 2)):
            for number in range(count):
                self.commit(task, policy, number, next(seeds))
        first = self.store.versions.policy(1, "policy", {})
        self.store.versions.label(first, {2: "best", 3: "last"})

    def commit(self, task: int, policy: str, number: int, seed: int) -> None:
        """A version with a random adapter."""
        folder = self.home.adapters / f"task-{task}"
        folder.mkdir(exist_ok=True)
        path = write_adapter(folder / f"{policy}-{number}.safetensors", self.base, seed, rank=2)
        digest = checksum(read_state(path, moments=False).adapter)
        new = NewVersion(number, f"t{task}-{policy}-v{number}", digest, str(path), path.stat().st_size)
        key = self.store.versions.policy(task, policy, {})
        if number:
            self.store.versions.commit_step(key, new, [], 0.1, {})
        else:
            self.store.versions.commit_first(key, new)

    def version(self, tenant: str, name: str) -> VersionRow:
        """The row of a version by its full name."""
        return next(row for row in self.store.served.versions(tenant) if reference(row) == name)

    def machine(self, *samplers: Any, sequences: int = 8, context: int = CONTEXT) -> Any:
        """Workers with these samplers; with a fake one where none are given."""
        made = samplers or (FakeSampler(vocabulary=VOCABULARY, sequences=sequences, context=context),)
        endpoints = {}
        for number, sampler in enumerate(made):
            name = f"rollout-{number + 1}"
            slots = SamplerSlots(sequences, Line(), patience=0.0)
            endpoints[name] = SamplerEndpoint(name, "torch", cast(Sampler, sampler), context, slots)
        rollout = Rollout(self.renderer, self.ledger)
        return Machine(self.home, rollout, endpoints, partial(write_bare, self.base))

    def serving(self, *samplers: Any, **more: Any) -> tuple[Serving, Crew]:
        """A server of versions, and its workers."""
        crew = Crew(self.machine(*samplers, **more))
        return Serving(self.store, cast(Any, crew), "tiny"), crew


def chat(model: str, words: str = "17 + 25 = ?", stream: bool = False, **wishes: Any) -> Chat:
    """A request of one message."""
    wanted = Wishes(**{"max_tokens": 12} | wishes)
    return Chat((Message("user", words),), id=7, key="tml-x", model=model, wishes=wanted, stream=stream)


def complete(model: str, *prompts: str | tuple[int, ...], **more: Any) -> Complete:
    """A request of some prompts."""
    echo, stream = more.pop("echo", False), more.pop("stream", False)
    wishes = Wishes(**{"max_tokens": 12} | more)
    return Complete(prompts, echo, id=8, key="tml-x", model=model, wishes=wishes, stream=stream)


async def talk(answerer: Answerer, request: Chat | Complete) -> tuple[Answered, list[Piece]]:
    """The answer, and the pieces that came before it."""
    pieces: list[Piece] = []
    return await answerer.answer(request, pieces.append), pieces
