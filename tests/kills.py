"""``python -m tests.kills [--kills N]``: kill processes of real engines, and prove that nothing was lost or doubled.

One uninterrupted run is the measure for tasks that are repeatable to the last bit. Then every run kills its share in a
home of its own, half at random moments and half at named points, lets the tasks finish, and has ``tests.oracle``
check the home. The last run also gives up tokens for room, so that this, too, is interrupted. Exit code 1 if anything
is wrong; homes are then kept and named.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import psutil

from marlaas.engine.daemon import control
from marlaas.engine.daemon.control import holder
from marlaas.engine.errors import EngineUnreachable, MarlaasError
from marlaas.engine.faults import VARIABLE, Point
from marlaas.engine.home.paths import Home
from marlaas.engine.store.queries.reader import Reader
from marlaas.engine.store.rows import TaskRow
from marlaas.engine.store.schema import is_current

from .arming import Reached, arm, disarm, recorded
from .oracle.audit import audit

STEPS = 24
LIVELY = 3
"""With fewer unfinished tasks than this, the next wave is submitted."""
MEAN_PAUSE = 0.5
"""Seconds between two random kills, exponentially distributed."""
PATIENCE, START_SECONDS, FINISH_SECONDS = 8.0, 90.0, 600.0
"""Seconds in which an armed point has to be reached, an engine has to serve, and tasks have to end."""
POLL = 0.02
LEAN_TOKEN_STEPS = 3
"""Of the last run; the others keep all tokens, so that every step can be made again."""
SHRINKING = frozenset({Point.SHRINK_INSIDE, Point.SHRINK_DONE})
WITH_RESTART = (Point.RECOVER_READY, Point.RECOVER_VOIDED, Point.RECOVER_DONE)
"""Reached only when a task begins: a kill has to come before."""
PROCESSES = {"engine": "", "rollout": "rollout", "training": "training", "environment": "marlaas.plugins.host"}
"""What may be killed, with the word of its command line that tells it from the engine's other children."""


# What is trained: small tasks of several tenants, with losses and bounds that differ


@dataclass(frozen=True)
class TaskFile:
    """A task file's text; ``exact`` ones must end bit for bit as in a run without kills."""

    name: str
    text: str
    exact: bool = False


ALONE = "[policy]\nrank = 8\n"
PAIR = """\
[policies]
adder = {rank = 8}
sorter = {rank = 4, groups_per_step = 3}

[agents]
adder = "adder"
sorter = "sorter"
"""
RIVALS = """\
[policies]
player = {rank = 8}
past = {pool = "player", every = 2, size = 3}

[agents]
first = "player"
second = "past"
"""
TEXT = """\
tenant = "{tenant}"
name = "{name}"
environment = "{environment}"
steps = {steps}

{policy}
[train]
groups_per_step = 2
group_size = 4
learning_rate = 1e-4
patience = 100000
{train}

[sampling]
max_tokens = 8
max_episode_tokens = 32

[eval]
prompts = 4
every = 4

[keep]
every = {keep}
"""


def _file(
    tenant: str, name: str, environment: str, train: str, keep: int = 1, steps: int = STEPS, policy: str = ALONE
) -> TaskFile:
    words = {"tenant": tenant, "name": name, "environment": environment, "train": train, "keep": keep}
    return TaskFile(name, TEXT.format(steps=steps, policy=policy, **words), "deterministic" in train)


def exact(steps: int = STEPS) -> TaskFile:
    """The same file in every home, so that one uninterrupted run is the measure for all."""
    train = 'deterministic = true\nmax_staleness = 0\nkl = 0.02\nschedule = "linear"'
    return _file("precise", "exact", "guess", train, steps=steps)


def opponent_pool(number: int, steps: int = STEPS) -> TaskFile:
    """One policy against earlier versions of itself."""
    train = f"seed = {number}\nmax_staleness = 2"
    return _file("dee", f"opponents-{number}", "race", train, steps=steps, policy=RIVALS)


def wave(number: int) -> list[TaskFile]:
    """Seven tasks of five tenants, with staleness 0, 2 and 4; the names and seeds of waves differ."""
    seed = f"seed = {number}\n"
    return [
        exact(),
        _file(
            "ada",
            f"kept-{number}",
            "arithmetic",
            f'{seed}loss = "dr_grpo"\nmax_staleness = 2\nimportance = "mask"',
        ),
        _file("ada", f"pruned-{number}", "arithmetic", f'{seed}loss = "reinforce"\nmax_staleness = 4', keep=0),
        _file(
            "bo",
            f"clipped-{number}",
            "guess",
            f'{seed}loss = "grpo"\nmax_staleness = 4\nkl = 0.01\nwarmup = 5\nredundant = 2',
        ),
        _file("cy", f"weighted-{number}", "guess", f'{seed}loss = "cispo"\nmax_staleness = 2\nweight_decay = 0.01'),
        _file("dee", f"relay-{number}", "relay", f"{seed}max_staleness = 2", policy=PAIR),
        opponent_pool(number),
    ]


# One home and its engine, driven from outside as its users do


def tasks_of(home: Home) -> list[TaskRow]:
    """All tasks, oldest first; none while the home has no database, or one without all of its tables."""
    if not is_current(home.database):
        return []
    with Reader(home.database) as reader:
        return reader.tasks()


@dataclass
class Lab:
    """A home in its own folder: submitted to, watched, killed, started again."""

    home: Home
    files: dict[int, TaskFile] = field(default_factory=dict)
    """What was submitted, by the task's number."""
    seen: set[tuple[int, int, str, str]] = field(default_factory=set)
    """(task, number, name, checksum) of every committed version that was ever looked at."""
    resumed: int = 0

    @classmethod
    def make(cls, root: Path, token_steps: int, faults: bool) -> Lab:
        """A new home; with ``faults``, its engines can be made to die at named points."""
        lab = cls(Home(root).create())
        settings = f"[training]\nslots = 3\n[disk]\nreserve_gb = 0\ntoken_steps = {token_steps}\n"
        lab.home.config.write_text(settings)
        lab.folder.mkdir()
        os.environ.pop(VARIABLE, None)
        if faults:
            os.environ[VARIABLE] = str(lab.folder)
        return lab

    @property
    def folder(self) -> Path:
        """Where faults are armed and recorded."""
        return self.home.root / "faults"

    def submit(self, files: list[TaskFile]) -> None:
        """Hand in task files by the command line, with numbers in their order."""
        paths = [self.home.root / f"{file.name}.toml" for file in files]
        for path, file in zip(paths, files, strict=True):
            path.write_text(file.text)
        before = {row.id for row in tasks_of(self.home)}
        self.start()
        self.command("submit", *map(str, paths))
        new = sorted(row.id for row in tasks_of(self.home) if row.id not in before)
        self.files.update(zip(new, files, strict=True))

    def command(self, *words: str) -> None:
        """Run ``marlaas``. Raises ``RuntimeError`` with its message if it fails."""
        line = [sys.executable, "-P", "-m", "marlaas.app.cli.main", "--home", str(self.home.root), *words]
        done = subprocess.run(line, capture_output=True, text=True, timeout=600, stdin=subprocess.DEVNULL)
        if done.returncode:
            raise RuntimeError(f"marlaas {' '.join(words)} ended with {done.returncode}: {done.stderr.strip()}")

    def start(self) -> None:
        """Make an engine serve; one that dies meanwhile is started again."""
        deadline = time.monotonic() + START_SECONDS
        while True:
            try:
                return control.ensure_running(self.home)
            except EngineUnreachable:
                if time.monotonic() > deadline:
                    raise

    def look(self) -> list[TaskRow]:
        """All tasks; also remembers what is committed, and resumes tasks that paused because workers died."""
        self.seen |= self._versions()
        rows = tasks_of(self.home)
        for row in rows:
            if row.state == "paused" and row.reason.startswith("Workers died"):
                with contextlib.suppress(RuntimeError):  # the engine died before it answered: the next look tries again
                    self.command("resume", str(row.id))
                    self.resumed += 1
        return rows

    def lost(self) -> list[str]:
        """Versions that were committed once and are gone."""
        return [name for _, _, name, _ in sorted(self.seen - self._versions())]

    def _versions(self) -> set[tuple[int, int, str, str]]:
        with Reader(self.home.database) as reader:
            return {(v.task, v.number, v.name, v.checksum) for v in reader.versions()}

    def kill(self, process: str) -> bool:
        """``kill -9`` one process of the engine, or the engine; False if there is none."""
        if not (pid := holder(self.home.lock)):
            return False
        with contextlib.suppress(psutil.NoSuchProcess, ProcessLookupError):
            victims = [pid]
            if process != "engine":
                children = psutil.Process(pid).children(recursive=True)
                victims = [child.pid for child in children if PROCESSES[process] in _words(child)]
            if victims:
                os.kill(victims[0], signal.SIGKILL)
                return True
        return False

    def checksums(self, task: int) -> list[str]:
        """Checksums of all versions of a task, oldest first."""
        with Reader(self.home.database) as reader:
            return [version.checksum for version in reversed(reader.versions(task))]

    def stop(self) -> None:
        """End the engine in order."""
        control.stop(self.home)


def _words(process: psutil.Process) -> list[str]:
    with contextlib.suppress(psutil.NoSuchProcess):
        return process.cmdline()
    return []


# The campaign


@dataclass(frozen=True)
class Kill:
    """One death; at a named point the record has the process that died."""

    process: str
    point: Point | None = None


def least_tried(tried: Counter[Point], reachable: Collection[Point], rng: random.Random) -> Point:
    """One of the points tried least, over all homes; it counts as tried even if nothing reaches it in time."""
    least = min(tried[point] for point in reachable)
    point = rng.choice([point for point in reachable if tried[point] == least])
    tried[point] += 1
    return point


def kill_many(
    lab: Lab, kills: int, tried: Counter[Point], reachable: Collection[Point], rng: random.Random
) -> list[Kill]:
    """Kill until ``kills`` have died. Raises ``RuntimeError`` for a task that fails or pauses on the way."""
    died: list[Kill] = []
    waves = 1
    lab.submit(wave(waves))
    while len(died) < kills:
        rows = lab.look()
        for row in rows:
            if row.state in ("failed", "cancelled") or (row.state == "paused" and "Workers died" not in row.reason):
                raise RuntimeError(f"After {len(died)} kills task {row.id} is {row.state}: {row.reason}")
        if sum(row.unfinished for row in rows) < LIVELY:
            waves += 1
            lab.submit(wave(waves))
        if len(died) % 2:
            died += _at_a_point(lab, least_tried(tried, reachable, rng), rng)
        else:
            time.sleep(rng.expovariate(1 / MEAN_PAUSE))  # the moment is the experiment
            process = rng.choice(list(PROCESSES))
            lab.look()
            died += [Kill(process)] if lab.kill(process) else []
        lab.start()
        if len(died) % 20 == 0:
            print(f"  {len(died)} of {kills} kills", flush=True)
    return died


def _at_a_point(lab: Lab, point: Point, rng: random.Random) -> list[Kill]:
    """Arm a point: the process that reaches it dies."""
    died: list[Kill] = []
    arm(lab.folder, point, rng.randint(1, 3), f"{rng.random()}")
    if point in WITH_RESTART:
        process = rng.choice(("engine", "training"))
        died += [Kill(process)] if lab.kill(process) else []
        lab.start()
    deadline = time.monotonic() + PATIENCE
    while (lab.folder / point).exists() and time.monotonic() < deadline:
        time.sleep(POLL)
    if not disarm(lab.folder, point):
        time.sleep(POLL)  # the process that removes the file dies a moment later
        died.append(Kill("", point))
    return died


def finish(lab: Lab) -> None:
    """Let every task end. Raises ``RuntimeError`` for one that ends otherwise than done, or not in time."""
    for point in Point:
        disarm(lab.folder, point)
    deadline = time.monotonic() + FINISH_SECONDS
    while time.monotonic() < deadline:
        lab.start()
        if not any(row.unfinished for row in lab.look()):
            break
        time.sleep(0.2)
    for row in tasks_of(lab.home):
        if row.state != "done":
            raise RuntimeError(f"Task {row.id} is {row.state} in the end: {row.reason}")


def table(kills: Sequence[Kill], record: Sequence[Reached]) -> list[str]:
    """Lines for people: deaths at random moments by process, deaths by point, and how often each point was reached."""
    at_random = Counter(kill.process for kill in kills if kill.point is None)
    at_points = Counter((reached.point, reached.process) for reached in record if reached.died)
    reached_at = Counter(reached.point for reached in record)
    lines = [f"{count:6}  {process}, at a random moment" for process, count in sorted(at_random.items())]
    for point in Point:
        deaths = {process: count for (at, process), count in sorted(at_points.items()) if at == point}
        words = " and ".join(f"{count} {process}" for process, count in deaths.items()) or "none"
        lines.append(f"{sum(deaths.values()):6}  {point} ({words}; reached {reached_at[point]:,} times)")
    processes = at_random + Counter(reached.process for reached in record if reached.died)
    shares = ", ".join(f"{process} {count}" for process, count in sorted(processes.items()))
    moments = f"{at_random.total()} at random, {at_points.total()} at points"
    return [*lines, f"{processes.total():6}  kills: {moments}", f"        by process: {shares}"]


def main(words: Sequence[str] | None = None) -> int:
    """Run the campaign and print what was found."""
    parser = argparse.ArgumentParser(prog="python -m tests.kills", description=__doc__.split("\n")[0])
    parser.add_argument("--kills", type=int, default=200, help="deaths over all runs (default: 200)")
    parser.add_argument("--runs", type=int, default=4, help="homes that they are spread over (default: 4)")
    parser.add_argument("--seed", type=int, default=0, help="of moments, victims and points (default: 0)")
    parser.add_argument("--out", type=Path, help="folder for the homes (default: a temporary one)")
    options = parser.parse_args(words)
    out = options.out or Path(tempfile.mkdtemp(prefix="marlaas-kills-"))
    begun, problems = time.monotonic(), list[str]()
    calm = Lab.make(out / "uninterrupted", 0, faults=False)
    calm.submit([exact()])
    finish(calm)
    calm.stop()
    measure = calm.checksums(1)
    kills: list[Kill] = []
    record: list[Reached] = []
    tried: Counter[Point] = Counter()
    for run in range(options.runs):
        share = options.kills // options.runs + (run < options.kills % options.runs)
        print(f"run-{run}: {share} kills, seed {options.seed + run}", flush=True)
        lean, rng = run == options.runs - 1, random.Random(options.seed + run)
        lab = Lab.make(out / f"run-{run}", LEAN_TOKEN_STEPS if lean else 0, faults=True)
        wrong = []
        try:
            kills += kill_many(lab, share, tried, [point for point in Point if lean or point not in SHRINKING], rng)
            finish(lab)
        except (RuntimeError, MarlaasError) as error:
            wrong.append(str(error))
        lab.stop()
        wrong += [f"the committed version {name} is lost" for name in lab.lost()]
        report = audit(lab.home.root)
        print("\n".join(f"  {line}" for line in report.lines()), flush=True)
        wrong += [*map(str, report.problems), *map(str, report.lost)]
        for task, file in lab.files.items():
            if file.exact and lab.checksums(task) != measure:
                wrong.append(f"task {task} is not bit for bit what it is without kills")
        print(f"  {lab.resumed} pauses for many deaths at one step were resumed", flush=True)
        record += recorded(lab.folder)
        problems += [f"run-{run}: {problem}" for problem in wrong]
    print("\n".join(table(kills, record)))
    print(f"{len(kills)} kills in {(time.monotonic() - begun) / 60:.1f} minutes, seed {options.seed}.")
    print(*(f"WRONG    {problem}" for problem in problems), sep="\n", end="\n" * bool(problems))
    if not problems and not options.out:
        shutil.rmtree(out)
    print(f"{len(problems)} problems; the homes are in {out}." if problems else "Nothing was lost, nothing doubled.")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
