"""Homes of a laboratory that has trained for months: a number of groups flows in, a database of gigabytes flows out.

Everything is written with the functions that engines write with, so that the tables, their indexes and their sizes are
those of a real home; only what was said repeats. One task has half of all groups, and one more is trained with two
policies in each play. The tasks have ended but the long one, which the next engine goes on with: its newest versions
have real files.

Run as ``python -m benchmarks.terminal.long_history HOME GROUPS`` it makes such a home to look at.
"""

from __future__ import annotations

import math
import sys
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from marlaas.engine.adapters.statefile import PolicyState, StateHeader, checksum, write_state
from marlaas.engine.base.model import BaseModel, load_base
from marlaas.engine.base.modules import linear_shapes
from marlaas.engine.fairness.ledger import Usage
from marlaas.engine.home.paths import Home
from marlaas.engine.spec import EvalSpec, NamedPolicySpec, TaskSpec, TrainSpec
from marlaas.engine.store import Draw, Evaluation, NewFinding, NewVersion, PolicyGroup, Store, submit
from marlaas.engine.submission.taskfile import submission
from marlaas.engine.trajectories import Episode, Failure, Group, Span, Trajectory, Transcript, Transcripts

BASE = "tiny"
TASKS = 16
TENANTS = ("physics", "bio", "chemistry", "maths")
GROUPS, MEMBERS = 8, 8
LENGTH, PROMPT = 420, 60
"""Tokens of a trajectory, and those of them that its prompt has."""
EVERY, PROMPTS = 50, 32
"""Steps between two evaluations, and prompts of each."""
KEPT = 3
"""Newest versions of a task whose files are there."""
EVENTS = 20_000
VARIETY = 64
"""Different groups; the others repeat them."""
BYTES = 6200
"""Bytes of the database for each trajectory, measured; for the check of the disk's room."""
METRICS = (
    *("reward", "loss", "entropy", "grad_norm", "clipped", "gap_mean", "gap_max", "staleness", "tokens", "seconds"),
    *("staleness_0", "staleness_1", "staleness_2", "no_signal", "kl", "ess", "drift", "length", "cut", "replaced"),
    *("lost", "replayed", "group_seconds", "train_seconds", "reward_best", "reward_spread", "moved", "exposed"),
    *("learning_rate", "prompt_tokens", "reply_tokens", "part_correct", "part_format", "metric_turns"),
)
WORDS = "the sum of both sides is what remains once each term was carried over to the other one and "


@dataclass(frozen=True)
class Shape:
    """What a home has beside its groups."""

    tasks: int = TASKS
    """At least three."""
    every: int = EVERY
    """Steps between two evaluations."""
    prompts: int = PROMPTS
    """Of each evaluation."""
    events: int = EVENTS
    variety: int = VARIETY


@dataclass(frozen=True)
class Made:
    """What was made of one group's members."""

    episodes: tuple[Episode, ...]
    transcripts: Transcripts


def history(folder: Path, groups: int, shape: Shape = Shape()) -> Home:
    """A home with so many training groups in all, and those of its evaluations beside them."""
    home, base = Home(folder).create(), load_base(BASE)
    specs = tuple(_spec(number, shape) for number in range(shape.tasks))
    with closing(Store(home.database, BASE, base.fingerprint, "torch")) as store:
        rows = [replace(submission(spec), base=base.fingerprint) for spec in specs]
        for number, task in enumerate(submit(home.database, rows)):
            share = groups // 2 if number == shape.tasks - 1 else groups // 2 // (shape.tasks - 1)
            _Task(store, home, base, shape, task, specs[number], number).fill(share)
        for number in range(shape.events):
            store.telemetry.event("task", f"Step {number} took longer than most.", number % shape.tasks + 1)
        store.telemetry.heartbeat(store.incarnation, "stopped")
    return home


def name(number: int) -> str:
    """A name that is found on the screen."""
    return f"history-{number:02}-sums"


def _spec(number: int, shape: Shape) -> TaskSpec:
    duel, long = number == 1, number == shape.tasks - 1
    return TaskSpec(
        TENANTS[number % len(TENANTS)],
        name(number),
        "arithmetic",
        steps=1_000_000 if long else 10_000,
        train=TrainSpec(groups_per_step=GROUPS, group_size=MEMBERS),
        eval=EvalSpec(every=shape.every, prompts=shape.prompts),
        policies={"first": NamedPolicySpec(), "second": NamedPolicySpec()} if duel else {},
        agents={"left": "first", "right": "second"} if duel else {},
    )


@dataclass(frozen=True)
class _Task:
    """Writes one task's history."""

    store: Store
    home: Home
    base: BaseModel
    shape: Shape
    task: int
    spec: TaskSpec
    number: int

    def fill(self, groups: int) -> None:
        """So many training groups, of all policies together."""
        store, names = self.store, tuple(self.spec.policies) or ("policy",)
        agents = tuple(self.spec.agents) or ("policy",)
        policies = [store.versions.policy(self.task, one, {}) for one in names]
        store.tasks.set_state(self.task, "running")
        variety = range(self.number * self.shape.variety, (self.number + 1) * self.shape.variety)
        made = [[_made(agent, seed) for seed in variety] for agent in agents]
        steps = groups // GROUPS // len(policies)
        for place, policy in enumerate(policies):
            store.versions.commit_first(policy, self._version(names[place], 0, kept=steps < KEPT))
        for step in range(1, steps + 1):
            self._play(policies, made, step)
            for place, policy in enumerate(policies):
                version = self._step(policy, names[place], step, last=steps)
                if step % self.shape.every == 0:
                    self._measure(policy, version, step, agents[place], made[place])
        for policy in policies if self.number % 3 == 0 else ():
            evidence = {"now": 0.3, "best": 0.6, "steps": 40.0}
            store.findings.add(policy, NewFinding("falling_reward", steps, evidence, ()), pauses=False)
        store.usage.add(Usage(self.task, stage, 10**6 * steps, 0.2 * steps) for stage in ("rollout", "training"))
        if self.number < self.shape.tasks - 1:
            store.tasks.set_state(self.task, "done")

    def _play(self, policies: list[int], made: list[list[Made]], step: int) -> None:
        for number in _numbers(step):
            parts = []
            for policy, own in zip(policies, made, strict=True):
                chosen = own[number % len(own)]
                group = Group(number, number, step - 1, "e1", chosen.episodes)
                parts.append(PolicyGroup(policy, group, chosen.transcripts))
            draw = Draw(number, 0, number, number % 997, 997, 0.0, 1.0, 0.5)
            self.store.experience.add_play("train", parts, draws=[draw])

    def _step(self, policy: int, whose: str, step: int, last: int) -> int:
        """The id of the version that it made."""
        new, kept = self._version(whose, step, step > last - KEPT), step > last - KEPT
        weights = {group: bytes(2 * MEMBERS * (LENGTH - PROMPT)) for group in _numbers(step)}
        done = self.store.versions.commit_step(policy, new, _numbers(step), 0.4, _metrics(self.task, step), weights)
        if not kept:
            self.store.versions.prune(done.id)
        return done.id

    def _measure(self, policy: int, version: int, step: int, agent: str, made: list[Made]) -> None:
        for prompt in range(self.shape.prompts):
            chosen = made[prompt % len(made)]
            transcripts = {key: words for key, words in chosen.transcripts.items() if key[0] == 0}
            part = PolicyGroup(policy, Group(prompt, prompt, step, "e1", chosen.episodes[:1]), transcripts)
            self.store.experience.add_play("eval", [part], step=step, rewards=[{agent: float(prompt % 2)}])
        prompts = self.shape.prompts
        score = Evaluation(step, "e1", _reward(policy, step), 0.03, prompts, 0.08, {}, prompts=prompts, series="e1")
        self.store.evaluations.add(policy, version, score)

    def _version(self, policy: str, step: int, kept: bool) -> NewVersion:
        """A version, with its file where it is kept."""
        path = self.home.file(f"adapters/task-{self.task}/{policy}-v{step}-i1.safetensors")
        name = f"task-{self.task}/{path.stem}"
        if not kept:
            return NewVersion(step, name, "0" * 16, str(path), 1_300_000)
        path.parent.mkdir(parents=True, exist_ok=True)
        state = _state(self.base, step)
        return NewVersion(step, name, checksum(state.adapter), str(path), write_state(path, state, sync=False))


def _numbers(step: int) -> range:
    return range((step - 1) * GROUPS, step * GROUPS)


def _state(base: BaseModel, step: int) -> PolicyState:
    rank = TaskSpec("t", "n", "e").policy.rank
    adapter = {}
    for module, (outputs, inputs) in linear_shapes(base.config).items():
        adapter[f"{module}.lora_A"] = np.full((rank, inputs), 0.01, np.float32)
        adapter[f"{module}.lora_B"] = np.zeros((outputs, rank), np.float32)
    moments = {key: np.zeros_like(array) for key, array in adapter.items()}
    header = StateHeader(rank, TaskSpec("t", "n", "e").policy.alpha, step, base.fingerprint)
    return PolicyState(header, adapter, moments, dict(moments))


def _made(agent: str, seed: int) -> Made:
    """A group as an environment plays it: short and long replies, and now and then one that failed."""
    random = np.random.default_rng(seed)
    episodes, transcripts = [], {}
    for member in range(MEMBERS):
        length = int(random.integers(LENGTH // 2, 3 * LENGTH // 2))
        failed = not random.integers(500)
        episodes.append(_episode(agent, member, length, random, failed))
        reply = f"{WORDS * (4 * (length - PROMPT) // len(WORDS))} {int(random.integers(100))}"
        transcripts[member, agent, 0] = Transcript((("user", f"{seed} + {member} = ? Think."), ("assistant", reply)))
    return Made(tuple(episodes), transcripts)


def _episode(agent: str, member: int, length: int, random: np.random.Generator, failed: bool) -> Episode:
    mask = np.ones(length, np.uint8)
    mask[:PROMPT] = 0
    trajectory = Trajectory(
        agent,
        random.integers(100, size=length).astype(np.int32),
        mask,
        (-random.random(length)).astype(np.float32) * mask,
        (Span(PROMPT, length, 0),),
        None if failed else float(random.integers(2)),
        0.5,
    )
    failure = Failure("The tool did not answer.", "tool.py", 17) if failed else None
    parts = {"correct": trajectory.reward or 0.0, "format": 1.0}
    return Episode(member, "error" if failed else "ok", (trajectory,), parts, {"turns": 1.0}, failure, 0.2)


def _reward(task: int, step: int) -> float:
    return min(1.0, 0.15 + 0.75 * (1 - math.exp(-step / 100)) + 0.06 * math.sin(1.7 * step + task))


def _metrics(task: int, step: int) -> dict[str, float]:
    """A curve that learns and wobbles, under every name that a step has."""
    return {name: _reward(task, step) if name == "reward" else 0.01 * ((step + task) % 97) for name in METRICS}


if __name__ == "__main__":
    history(Path(sys.argv[1]), int(sys.argv[2]))
