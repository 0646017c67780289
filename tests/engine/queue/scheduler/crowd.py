"""Several tenants' tasks in one engine, for tests only: the real scheduler over the fake stages of ``world``.

Time is counted in turns of the event loop, so a run depends on its seed alone: ``in_turns`` runs it on a loop whose
clock stands still between turns. A history is checked against the store's rows, by arithmetic of its own.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import sqlite3
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, cast
from unittest import mock

from marlaas.engine.adapters.statefile import checksum
from marlaas.engine.environments.protocol import EpisodeOutcome, EpisodeSpec
from marlaas.engine.machine.supervisor import WorkerSupervisor
from marlaas.engine.queue.scheduler.scheduler import Scheduler
from marlaas.engine.spec.task import TaskSpec, agent_map_of, spec_of
from marlaas.engine.store.submissions import command
from marlaas.plugins.messages import Answer

from ...rollout.fake import Entry
from .fake_environments import FakeEnvironments
from .world import UNTRAINED, World, lesson, taught

TURN = 0.005
"""Seconds of the loop's clock for each of its turns."""
LOCKED = 40
"""Turns for which another program holds the database's lock."""
LOOK = 20
"""Turns between two looks at the tasks' states."""


class TurnLoop(asyncio.SelectorEventLoop):
    """An event loop whose clock is moved by whoever drives it."""

    now = 0.0

    def time(self) -> float:
        return self.now


async def turn() -> None:
    """Let everything that is ready run once."""
    cast(TurnLoop, asyncio.get_running_loop()).now += TURN
    await asyncio.sleep(0)


def in_turns(main: Coroutine[Any, Any, None]) -> None:
    """Run ``main``; threads are run at once, in the loop's own."""

    async def at_once(work: Callable[..., Any], *arguments: Any) -> Any:
        return work(*arguments)

    with asyncio.Runner(loop_factory=TurnLoop) as runner, mock.patch.object(asyncio, "to_thread", at_once):
        runner.run(main)


@dataclass(frozen=True)
class Happening:
    """Something that befalls the engine, so many turns after the last."""

    turns: int
    kind: Literal["workers die", "engine stops", "engine is killed", "pause", "resume", "locked"]
    place: int = 0
    """Which task is paused or resumed, counted round."""


AGENTS = {"talk": ("first", "second"), "whisper": ("first", "second")}
"""By environment; all others have one agent."""


class Talks(FakeEnvironments):
    """Environments with one agent and with two, of which the second of *whisper* speaks on every third instance."""

    async def play(self, lease: Any, spec: EpisodeSpec, answer: Answer, counts: bool = False) -> EpisodeOutcome:
        agents = AGENTS.get(lease.environment, self.agents)
        if lease.environment == "whisper" and spec.split == "train" and spec.index % 3:
            agents = agents[:1]
        return await FakeEnvironments.play(replace(self, agents=agents), lease, spec, answer)


class Crowd(World):
    """A home with several tasks, and the engine that serves it."""

    def __init__(self, root: Path, specs: Sequence[TaskSpec], slots: int, seed: int, most: int) -> None:
        self.ledgers: list[list[Entry]] = []
        super().__init__(root, specs[0], seed, most, others=specs[1:])
        self.tasks = dict(zip((self.task, *self.others), specs, strict=True))
        self.environments = Talks(self.chance)
        self.slots = slots
        self.turns = 0
        self._serve()

    def replace_workers(self) -> None:
        super().replace_workers()
        self.ledgers.append(self.workers.sampler.ledger)

    def _serve(self) -> None:
        self.store.versions.barrier = lambda: None  # power cuts are another test's business
        self.store.serve(patience=0.0)  # the loop's clock would not move meanwhile
        self.scheduler = Scheduler(self.store, cast(WorkerSupervisor, self), self.slots)
        self._serving = asyncio.ensure_future(self.scheduler.run())

    async def live(self, turns: int) -> None:
        """Let so many turns pass. Raises what the engine raises."""
        for _ in range(turns):
            self.turns += 1
            await turn()
            if self._serving.done():
                self._serving.result()

    async def befall(self, happening: Happening) -> None:
        """Live up to a happening, and through it."""
        await self.live(happening.turns)
        task = list(self.tasks)[happening.place % len(self.tasks)]
        if happening.kind == "workers die":
            self.kill_workers()
        elif happening.kind == "locked":
            await self.live_locked(LOCKED)
        elif happening.kind in ("pause", "resume"):
            self.ask(happening.kind, task)
        else:
            await self.end(killed=happening.kind == "engine is killed")
            self.restart()
            self._serve()

    async def live_locked(self, turns: int) -> None:
        """Live for so many turns while another program holds the lock."""
        with contextlib.closing(sqlite3.connect(self.home.database, isolation_level=None)) as other:
            other.execute("BEGIN EXCLUSIVE")
            await self.live(turns)

    def ask(self, kind: str, task: int) -> None:
        """A command, as the app gives it."""
        command(self.home.database, kind, task)
        self.scheduler.wake()

    async def end(self, killed: bool = False) -> None:
        """Stop the engine; one that is killed writes nothing more, and its workers die with it."""
        if killed:
            self.store._database.conn.set_authorizer(lambda *_: sqlite3.SQLITE_DENY)
            self.workers.lost.set()
            self._serving.cancel()
        self.scheduler.stop()
        while not self._serving.done():
            await turn()
        with contextlib.suppress(asyncio.CancelledError):
            self._serving.result()

    async def finish(self, bound: int) -> None:
        """Live until all tasks are done, within ``bound`` turns; whoever is paused is resumed, as by a person."""
        last = self.turns + bound
        while (states := self.states()) != dict.fromkeys(self.tasks, "done"):
            assert "failed" not in states.values(), self.query("SELECT id, state, reason FROM tasks")
            assert self.turns < last, f"not done in {bound} turns: {self.query('SELECT id, state, reason FROM tasks')}"
            for row in self.query("SELECT id, reason FROM tasks WHERE state = 'paused'"):
                assert row["reason"].startswith(("paused by you", "The environment failed")), row
                if not self.query("SELECT 1 FROM commands WHERE done IS NULL"):
                    self.ask("resume", row["id"])
            await self.live(LOOK)

    def states(self) -> dict[int, str]:
        """Of all tasks."""
        return {task: self.store.tasks.state(task) for task in self.tasks}

    def check_histories(self) -> None:
        """What the store holds of each task is a history that the algorithm can have made."""
        sampled = [entry for ledger in self.ledgers for entry in ledger]
        for task, spec in self.tasks.items():
            for name in agent_map_of(spec).trained:
                check_history(self, task, name, spec_of(spec, name), sampled)


def check_history(world: World, task: int, policy: str, spec: TaskSpec, sampled: Sequence[Entry]) -> None:
    """Raise ``AssertionError`` where a policy's rows are not those of a correct run that went to its last step.

    ``spec`` is the task as that policy sees it.
    """
    train, numbers = spec.train, list(range(1, spec.steps + 1))
    own = f"p.task = {task} AND p.name = '{policy}'"
    versions = world.query(
        "SELECT v.number, v.name, v.checksum FROM versions v JOIN policies p ON p.id = v.policy"
        f" WHERE {own} ORDER BY v.number"
    )
    assert [version["number"] for version in versions] == [0, *numbers], "a committed step was lost, or made twice"
    steps = world.query(f"SELECT s.number FROM steps s JOIN policies p ON p.id = s.policy WHERE {own}")
    assert sorted(row["number"] for row in steps) == numbers
    groups = world.query(
        "SELECT g.id, g.number, g.state, g.step, g.version FROM groups g JOIN policies p ON p.id = g.policy"
        f" WHERE {own} AND g.split = 'train' ORDER BY g.number"
    )
    assert [group["number"] for group in groups] == list(range(spec.steps * train.groups_per_step))
    adapter = UNTRAINED
    for number in numbers:
        batch = groups[(number - 1) * train.groups_per_step : number * train.groups_per_step]
        assert {(group["state"], group["step"]) for group in batch} == {("consumed", number)}
        rows = [sequences(world, group["id"]) for group in batch]
        for group, trajectories in zip(batch, rows, strict=True):
            spans = [version for row in trajectories for _, _, version in json.loads(row["spans"])]
            assert set(spans) <= {group["version"]}, "a group of several versions"
            assert spans or may_skip(spec, policy, group["number"]), "a group that nobody spoke in"
            assert 0 <= number - 1 - group["version"] <= train.max_staleness, "beyond the bound on staleness"
        lessons = (lesson(g["number"], map(_parts, told)) for g, told in zip(batch, rows, strict=True))
        adapter = taught(adapter, lessons)
        assert checksum({"m.lora_A": adapter}) == versions[number]["checksum"], "taught something else"
    names = {row["name"]: row["checksum"] for row in versions}
    for entry in sampled:
        if entry.version in names:
            assert entry.checksum == names[entry.version]
            whose = f"task-{task}/" if spec.policies else f"{entry.version}/"  # a play is named after one of its own
            assert entry.conversation.startswith(whose)


def may_skip(spec: TaskSpec, policy: str, number: int) -> bool:
    """Whether none of the policy's agents speaks in a group of this number; of another attempt nobody knows."""
    agents = [agent for agent, name in spec.agents.items() if name == policy]
    return spec.environment == "whisper" and agents == ["second"]


def sequences(world: World, group: int) -> list[dict[str, Any]]:
    """The rows of a group that are trained on, in the order of training."""
    return world.query(
        "SELECT tokens, mask, logprobs, advantage, spans FROM trajectories"
        f" WHERE \"group\" = {group} AND speaker = '' AND reward IS NOT NULL AND instr(mask, x'01') > 0 ORDER BY id"
    )


def _parts(row: dict[str, Any]) -> tuple[bytes, bytes, bytes, float]:
    return row["tokens"], row["mask"], row["logprobs"], row["advantage"]
