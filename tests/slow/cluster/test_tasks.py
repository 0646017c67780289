"""Real tasks over three nodes: the same bits as on one machine, and nothing lost or doubled whatever dies."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import time
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from statistics import median
from typing import Any

import psutil
import pytest

from marlaas.engine.daemon import control
from marlaas.engine.store.queries.machine import nodes
from marlaas.engine.store.queries.reader import Reader
from tests.end_to_end.conftest import Lab, configured, consumed_once
from tests.ray_nodes import VARIABLES, RayNodes
from tests.slow.waiting import finished

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(3600)]
EXACT = {"deterministic": True, "max_staleness": 0, "groups_per_step": 2, "group_size": 4}
TASK: dict[str, Any] = {"environment": "guess", "steps": 3, "train": EXACT}
KILLS = int(os.environ.get("KILLS_OF_NODES", "50"))
VICTIMS = ("worker", "host", "bridge", "node", "node", "engine")
FEW = 6
"""Steps of a task among the kills."""
HOST = "marlaas.engine.machine.workers.host"
SETTINGS = """\
[rollout]
sampler = "torch"
[training]
trainers = 1
"""
CLUSTER = """
[cluster]
address = "{address}"
insecure = true
"""


def checksums(lab: Lab, task: int) -> list[str]:
    with Reader(lab.home.database) as reader:
        return [version.checksum for version in reader.versions(task)]


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """The versions of the deterministic task on one machine without a cluster."""
    return versions_alone(tmp_path_factory.mktemp("alone"), SETTINGS)


def versions_alone(folder: Path, settings: str) -> list[str]:
    """Checksums of the deterministic task's versions, on one machine."""
    with configured(folder, settings) as lab:
        task = lab.submit("exact", **TASK)
        finished(lab, [task])
        return checksums(lab, task)


@contextlib.contextmanager
def over_nodes(ray_nodes: RayNodes, folder: Path, monkeypatch: pytest.MonkeyPatch, settings: str) -> Iterator[Lab]:
    """The same with these settings; in the end no worker is left on any node."""
    for name, value in VARIABLES.items():
        monkeypatch.setenv(name, value)
    with configured(folder, settings + CLUSTER.format(address=ray_nodes.address)) as lab:
        lab.marlaas("cluster", "drain", "head")
        yield lab
    assert not [each for each in workers_of(ray_nodes, lab) if each.is_running()]


def placed(lab: Lab) -> dict[str, list[str]]:
    """The workers on each node, by its name."""
    with Reader(lab.home.database) as reader:
        return {row.name: list(row.workers) for row in nodes(reader) if row.alive}


def until_placed(lab: Lab) -> dict[str, list[str]]:
    """Wait until the drained head has no worker."""
    deadline = time.monotonic() + 300
    while time.monotonic() < deadline:
        found = placed(lab)
        if found and not found["head"] and any(found.values()):
            return found
        time.sleep(0.2)  # the engine is another process: there is nothing to await
    raise AssertionError(f"The workers stay at {placed(lab)}.")


def workers_of(nodes: RayNodes, lab: Lab) -> list[psutil.Process]:
    """Processes of workers that node hosts have started."""
    found = []
    for process in psutil.process_iter():
        try:
            line, home = process.cmdline(), process.environ().get("MARLAAS_HOME", "")
        except psutil.Error:
            continue
        if HOST in line and home in {str(nodes.home(name)) for name in nodes.ids}:
            found.append(process)
    return found


@pytest.mark.parametrize("sampler", ["torch", "llama.cpp"])
def test_a_deterministic_task_has_the_same_bits_over_nodes(
    sampler: str, ray_nodes: RayNodes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, alone: list[str]
) -> None:
    """One node samples, and what is trained on another is what one machine trains."""
    settings = SETTINGS.replace("torch", sampler)
    expected = alone if sampler == "torch" else versions_alone(tmp_path / "alone", settings)
    with over_nodes(ray_nodes, tmp_path / "nodes", monkeypatch, settings) as lab:
        where = until_placed(lab)
        task = lab.submit("exact", **TASK)
        finished(lab, [task])
        assert checksums(lab, task) == expected and len(set(expected)) == TASK["steps"] + 1
        lab.sound(task)
        assert {name for name, workers in where.items() if workers} <= {"ada", "grace"}


@pytest.fixture
def lab(ray_nodes: RayNodes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Lab]:
    """A home on the head's machine, all of whose workers are on other nodes."""
    with over_nodes(ray_nodes, tmp_path, monkeypatch, SETTINGS) as lab:
        yield lab


def test_nothing_runs_on_after_the_engine_is_killed(lab: Lab, ray_nodes: RayNodes) -> None:
    until_placed(lab)
    task = lab.submit("sums", "arithmetic", steps=4)
    lab.until(task, 1)
    workers = workers_of(ray_nodes, lab)
    hosts = [parent for worker in workers if (parent := worker.parent())]
    assert workers and hosts
    lab.kill_engine()
    _, alive = psutil.wait_procs([*workers, *hosts], timeout=60)
    assert not alive, f"orphans on nodes: {alive}"
    control.ensure_running(lab.home)
    finished(lab, [task])
    consumed_once(lab.home, task)
    lab.sound(task)


def test_a_dead_sampler_on_a_node_is_replaced_alone(lab: Lab, ray_nodes: RayNodes) -> None:
    """The trainer on the other node goes on, and so do the bridge and the engine."""
    until_placed(lab)
    task = lab.submit("sums", "arithmetic", steps=12)
    lab.until(task, 2)
    before, others = named(ray_nodes, lab), (lab.engine_pid(), lab.worker_pids("bridge"))
    assert {"rollout", "training"} <= set(before)
    os.kill(before["rollout"], signal.SIGKILL)
    finished(lab, [task])
    after = named(ray_nodes, lab)
    assert [name for name in before if after.get(name) != before[name]] == ["rollout"] and after["rollout"]
    assert others == (lab.engine_pid(), lab.worker_pids("bridge"))
    consumed_once(lab.home, task)
    lab.sound(task)


def named(nodes: RayNodes, lab: Lab) -> dict[str, int]:
    """Process ids of the workers on nodes, by the workers' names."""
    lines = {process.pid: process.cmdline() for process in workers_of(nodes, lab)}
    return {line[line.index(HOST) + 1]: pid for pid, line in lines.items()}


def test_whatever_dies_nothing_is_lost_or_doubled(
    lab: Lab, ray_nodes: RayNodes, alone: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    """Two tasks train at any time; each is measured first, makes a few steps, and is followed by another."""
    until_placed(lab)
    draw = random.Random(24)
    took: defaultdict[str, list[float]] = defaultdict(list)
    tasks = [submitted(lab, number) for number in range(2)]
    every = list(tasks)
    for number in range(1, KILLS + 1):
        time.sleep(draw.uniform(0, median(sum(took.values(), [4.0])) / 2))  # whatever the tasks are about by then
        for place, task in enumerate(tasks):
            if not unfinished(lab, task):
                tasks[place] = submitted(lab, len(every))
                every.append(tasks[place])
        before, begun = {task: lab.row(task).step for task in tasks}, time.monotonic()
        victim = end_one(draw.choice(VICTIMS), draw, lab, ray_nodes)
        deadline = time.monotonic() + 600
        while any(lab.row(task).step <= before[task] and unfinished(lab, task) for task in tasks):
            assert time.monotonic() < deadline, f"Nothing went on after the death of a {victim}."
            time.sleep(0.2)  # the engine is another process: there is nothing to await
        took[victim].append(time.monotonic() - begun)
        with capsys.disabled():
            print(
                f"\n{number} of {KILLS}: a {victim}, {took[victim][-1]:.1f} s until all had a step", end="", flush=True
            )
    with capsys.disabled():
        for victim, seconds in sorted(took.items()):
            usual, most = median(seconds), max(seconds)
            print(f"\n{len(seconds)} times a {victim}: {usual:.1f} s until both had a step, at most {most:.1f}")
    exact = lab.submit("exact", **TASK)
    finished(lab, [*every, exact])
    for task in (*every, exact):
        consumed_once(lab.home, task)
    lab.sound(*every, exact)
    assert checksums(lab, exact) == alone


def submitted(lab: Lab, number: int) -> int:
    """The task of that number: of two tenants, in turn."""
    environment = ("arithmetic", "guess")[number % 2]
    return lab.submit(
        f"loose {number}", environment, steps=FEW, tenant=f"tenant {number % 2}", train={"max_staleness": 1}
    )


def unfinished(lab: Lab, task: int) -> bool:
    return lab.row(task).state not in ("done", "failed", "paused")


def end_one(victim: str, draw: random.Random, lab: Lab, nodes: RayNodes) -> str:
    """End something, as it dies at people's homes; returns what it was, in words."""
    if victim == "engine":
        lab.kill_engine()
        control.ensure_running(lab.home)
    elif victim == "node":
        name = draw.choice(("ada", "grace"))
        stages = sorted({"samples" if "rollout" in own else "trains" for own in placed(lab).get(name, ())})
        victim = f"node that {' and '.join(stages) or 'starts'}"
        nodes.remove(name)
        nodes.ids[name] = nodes.add(name)
    elif victim == "bridge":
        for pid in lab.worker_pids("bridge"):
            os.kill(pid, 9)
    else:
        found = workers_of(nodes, lab)
        if found:
            one = draw.choice(sorted(found, key=lambda process: process.pid))
            process = one if victim == "worker" else one.parent()
            with contextlib.suppress(psutil.NoSuchProcess):  # it may have ended with another one
                if process is not None:
                    process.kill()
    return victim


def test_without_the_head_this_machine_goes_on(lab: Lab, ray_nodes: RayNodes, alone: list[str]) -> None:
    """The last test of the file: the cluster does not come back."""
    until_placed(lab)
    exact, loose = lab.submit("exact", **TASK), lab.submit("loose", "arithmetic", steps=6)
    lab.until(loose, 1)
    ray_nodes.kill_head()
    finished(lab, [exact, loose])
    consumed_once(lab.home, loose)
    lab.sound(exact, loose)
    assert checksums(lab, exact) == alone
