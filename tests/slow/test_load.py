"""Load is not reward: a deterministic task gets the same rewards alone, beside 31 others, and on an overloaded machine.

Environments of every kind that people write (``kinds``). What a limit on wall time ended is played again, and nothing
is lost in silence: an episode that has no reward stands in the store with its failure.
"""

from __future__ import annotations

import contextlib
import json
import os
import sqlite3
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import pytest

from marlaas.engine.daemon import control
from marlaas.engine.home.paths import Home

from ..end_to_end.conftest import Lab
from .kinds import KINDS, fails
from .waiting import unfinished

pytestmark = [pytest.mark.slow, pytest.mark.processes, pytest.mark.timeout(1200)]

TASKS = 32
"""Of them ``len(KINDS)`` are looked at."""
CORES = 2
"""Cores that all of it runs on, whatever the machine has."""
BUSY = 8
"""Processes that compute all the time, on top of everything else: four for each of these cores."""
PATIENCE = 240.0
"""Seconds for each of the three loads: what is not done by then will not be."""
EXACT = {"deterministic": True, "max_staleness": 0, "groups_per_step": 2, "group_size": 8}
LENGTHS = {"tools": 64}
"""Tokens of a turn, of kinds whose turns are long: a call of a tool."""


@dataclass(frozen=True)
class Run:
    """What a task came to."""

    rewards: dict[tuple[Any, ...], float | None]
    """By split, step, group, instance, member and agent; None where the episode failed."""
    said: dict[tuple[Any, ...], list[dict[str, str]]]
    """What was asked and answered, by the same keys."""
    failures: dict[tuple[Any, ...], str]
    """Why an episode has no reward, by the same keys."""
    checksums: list[str]
    """Of its versions' files."""
    scores: list[tuple[int, float, int]]
    """Step, score and number of episodes of each evaluation."""


@pytest.fixture
def cores() -> Iterator[list[int]]:
    """A few cores, on which this process and all that it starts run."""
    before = os.sched_getaffinity(0)
    chosen = sorted(before)[:CORES]
    os.sched_setaffinity(0, chosen)
    yield chosen
    os.sched_setaffinity(0, before)


@pytest.fixture
def lab(tmp_path: Path, cores: list[int]) -> Iterator[Lab]:
    lab = Lab(Home(tmp_path / "home").create())
    for kind, text in KINDS.items():
        (lab.home.plugins / f"{kind}.py").write_text(text)
    control.ensure_running(lab.home)
    yield lab
    control.stop(lab.home)


@contextlib.contextmanager
def overloaded() -> Iterator[None]:
    """A machine on which ``BUSY`` other programs compute."""
    programs = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(BUSY)]
    try:
        yield
    finally:
        for program in programs:
            program.kill()
            program.wait()


def submitted(lab: Lab, name: str, kind: str, **more: Any) -> int:
    """Queue a deterministic task of three steps; several of one kind differ in nothing but the name."""
    return lab.submit(
        f"{kind} {name}", kind, steps=3, train=EXACT, sampling={"max_tokens": LENGTHS.get(kind, 12)}, **more
    )


def run_of(lab: Lab, task: int) -> Run:
    """Read the rows of a task that is done."""
    with contextlib.closing(sqlite3.connect(f"file:{lab.home.database}?mode=ro", uri=True)) as connection:
        connection.row_factory = sqlite3.Row
        rows = connection.execute(
            "SELECT g.split, g.step, g.number, g.instance, g.state, t.member, t.agent, t.status, t.reward, t.failure,"
            ' t.turns FROM trajectories t JOIN groups g ON g.id = t."group" JOIN policies p ON p.id = g.policy'
            " WHERE p.task = ?",
            [task],
        ).fetchall()
        versions = connection.execute(
            "SELECT v.checksum FROM versions v JOIN policies p ON p.id = v.policy WHERE p.task = ? ORDER BY v.number",
            [task],
        ).fetchall()
        scores = connection.execute(
            "SELECT e.step, e.score, e.n FROM evals e JOIN policies p ON p.id = e.policy WHERE p.task = ? ORDER BY 1",
            [task],
        ).fetchall()
    kept = {_key(row): row for row in rows if row["split"] == "eval" or row["state"] == "consumed"}
    return Run(
        {key: row["reward"] for key, row in kept.items()},
        {key: json.loads(row["turns"] or "[]") for key, row in kept.items()},
        {key: row["failure"] or "" for key, row in kept.items() if row["status"] != "ok"},
        [row["checksum"] for row in versions],
        [tuple(row) for row in scores],
    )


def _key(row: sqlite3.Row) -> tuple[Any, ...]:
    return tuple(row[name] for name in ("split", "step", "number", "instance", "member", "agent"))


def test_load_is_not_reward(lab: Lab) -> None:
    alone: dict[str, int] = {}
    kinds = list(KINDS)
    wrong: list[str] = []
    for kind in kinds:
        alone[kind] = submitted(lab, "alone", kind)
        wrong += unfinished(lab, [alone[kind]], PATIENCE)
    beside = {kind: submitted(lab, "beside", kind, tenant="watched") for kind in kinds}
    names = [(kinds[number % len(kinds)], number) for number in range(TASKS - len(kinds))]
    others = [submitted(lab, f"other {n}", kind, tenant=f"tenant {n % 4}") for kind, n in names]
    wrong += unfinished(lab, [*beside.values(), *others], PATIENCE)
    with overloaded():
        stressed = {kind: submitted(lab, "stressed", kind) for kind in kinds}
        wrong += unfinished(lab, list(stressed.values()), PATIENCE)

    for kind in kinds:
        first = run_of(lab, alone[kind])
        wrong += [f"{kind} alone: {said}" for said in _lost(kind, first)]
        for name, task in (("beside", beside[kind]), ("stressed", stressed[kind])):
            other = run_of(lab, task)
            wrong += [f"{kind} {name}: {said}" for said in (*_lost(kind, other), *_changed(first, other))]
    assert not wrong, "\n".join(wrong)


def _lost(kind: str, run: Run) -> list[str]:
    """What is missing in a run, in words: every member has a reward, unless its environment failed on its reply."""
    found = []
    members = Counter(key[:4] for key in run.rewards if key[0] == "train")
    if few := {group: seen for group, seen in members.items() if seen < EXACT["group_size"]}:
        found.append(f"members that are nowhere: {few}")
    if len(members) != 3 * EXACT["groups_per_step"]:
        found.append(f"{len(members)} groups")
    for key, failure in run.failures.items():
        if kind != "raising" or not failure:
            found.append(f"{key} has no reward: {failure!r}")
    if kind == "tools" and not any(turn["role"] == "tool" for turns in run.said.values() for turn in turns):
        found.append("nobody has called a tool")
    for key, turns in run.said.items():
        if kind == "raising" and fails(turns[0]["text"], turns[-1]["text"]) != (key in run.failures):
            found.append(f"{key} failed on another reply than it should: {turns}")
    return found


def _changed(one: Run, other: Run) -> list[str]:
    """How two runs of the same task differ, in words."""
    found = []
    if one.rewards != other.rewards:
        keys = [key for key in {**one.rewards, **other.rewards} if one.rewards.get(key) != other.rewards.get(key)]
        shown = [(key, one.rewards.get(key), other.rewards.get(key)) for key in keys[:3]]
        found.append(f"{len(keys)} of {len(one.rewards)} rewards differ: {shown}")
    if one.checksums != other.checksums:
        found.append("its versions have other bits")
    if one.scores != other.scores:
        found.append(f"scores {one.scores}, then {other.scores}")
    return found


def test_the_default_settings_lose_no_episode(lab: Lab, cores: list[int]) -> None:
    """20 steps of a grader that blocks for 50 ms, and of a plain ``def``, beside each other and six other tasks.

    They take no longer than the cores need to compute it all: these stand idle for a tenth of the time at most. Other
    programs can only keep them busier, so this fails on no busy machine.
    """
    watched = {kind: _at_defaults(lab, kind) for kind in ("blocking", "plain")}
    kinds = ("coroutine", "aclass", "tools", "program", "coroutine", "aclass")
    others = [
        lab.submit(
            f"other {n}", kind, tenant=f"tenant {n % 3}", steps=10, sampling={"max_tokens": LENGTHS.get(kind, 8)}
        )
        for n, kind in enumerate(kinds)
    ]
    began, before = time.monotonic(), _idle(cores)
    assert not unfinished(lab, [watched["blocking"]], 2 * PATIENCE)
    took, idle = time.monotonic() - began, _idle(cores) - before
    assert not unfinished(lab, [*watched.values(), *others], 2 * PATIENCE)
    assert idle <= 0.1 * CORES * took, f"of {CORES} cores in {took:.0f} s, {idle:.0f} s were idle"
    for kind, task in watched.items():
        run = run_of(lab, task)
        assert not run.failures, (kind, len(run.failures), next(iter(run.failures.items())))
        members = Counter(key[:3] for key in run.rewards if key[0] == "train")
        assert len(members) == 20 * 8 and set(members.values()) == {8}, kind
        steps, _, counts = zip(*run.scores, strict=True)
        assert {0, 20} <= set(steps) <= {0, 10, 20}, "of evaluations that wait for each other the newest wins"
        assert set(counts) == {64}, (kind, run.scores)
    with contextlib.closing(sqlite3.connect(f"file:{lab.home.database}?mode=ro", uri=True)) as connection:
        ends = connection.execute("SELECT environment, status, sum(episodes) FROM outcomes GROUP BY 1, 2").fetchall()
    lost = [row for row in ends if row[1] not in ("ok", "invalid", "skip")]
    assert not lost, "every episode ended well at its first try"


def _idle(cores: list[int]) -> float:
    """Seconds in which these cores had nothing to do, since the machine started."""
    counted = psutil.cpu_times(percpu=True)
    return sum(counted[core].idle + getattr(counted[core], "iowait", 0.0) for core in cores)


def _at_defaults(lab: Lab, kind: str) -> int:
    """A task whose file says nothing but what it is, and how long."""
    path = lab.home.root / f"{kind}.toml"
    path.write_text(f'tenant = "lab"\nname = "{kind}"\nenvironment = "{kind}"\nsteps = 20\n')
    (number,) = json.loads(lab.marlaas("submit", str(path), "--json"))["ids"]
    return int(number)
