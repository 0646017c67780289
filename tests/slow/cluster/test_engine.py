"""A whole engine over two machines that have joined as people join them: placed, drained in the middle, exported."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import psutil
import pytest

from marlaas.engine.daemon import control
from marlaas.engine.home.paths import Home
from marlaas.engine.store.queries.machine import NodeRow
from marlaas.engine.store.queries.reader import Reader
from tests.end_to_end.conftest import Lab, consumed_once
from tests.slow.waiting import finished

from .machines import machine

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(1800)]
STEPS = 10
MANY = 100_000
"""Steps of a task that no machine is done with before the drain."""
TWO_CORES = "[resources]\ncores = 2\n"


@pytest.fixture
def lab(tmp_path: Path) -> Iterator[Lab]:
    """The home of the head, ``ada``, to which ``bob`` has joined."""
    with ExitStack() as leaving:
        head = machine(tmp_path, "head", TWO_CORES)
        joined = head("cluster", "join", "--ip", "127.0.0.1", "--name", "ada")
        assert joined.returncode == 0, joined.stderr
        leaving.callback(head, "cluster", "leave", "--force")
        other = machine(tmp_path, "other", TWO_CORES)  # only now: the head's ports are taken
        joined = other("cluster", "join", head.address, "--token", "-", "--name", "bob", given=head.token)
        assert joined.returncode == 0, joined.stderr
        leaving.callback(other, "cluster", "leave", "--force")
        rays = [head.ray, other.ray]
        lab = Lab(Home(head.home))
        control.ensure_running(lab.home)
        yield lab
        control.stop(lab.home)
        every = [*rays, *(child for ray in rays for child in ray.children(recursive=True))]
    _, alive = psutil.wait_procs(every, timeout=60)
    assert not alive, "something of the cluster lives on"


def nodes(lab: Lab) -> dict[str, NodeRow]:
    with Reader(lab.home.database) as reader:
        return {row.name: row for row in reader.nodes() if row.alive}


def until(lab: Lab, holds: Callable[[dict[str, NodeRow]], bool]) -> dict[str, NodeRow]:
    """Wait until something holds of the nodes."""
    deadline = time.monotonic() + 300
    while time.monotonic() < deadline:
        if holds(found := nodes(lab)):
            return found
        time.sleep(0.2)  # the engine is another process: there is nothing to await
    raise AssertionError(f"It is never so: {nodes(lab)}")


def test_tasks_go_over_two_machines_and_home_again(lab: Lab, tmp_path: Path) -> None:
    """Both are used at first; once bob is drained his workers move, and every task ends with all of its steps."""
    found = until(lab, lambda rows: "bob" in rows and any(row.workers for row in rows.values()))
    workers = [worker for row in found.values() for worker in row.workers]
    assert any(worker.startswith("rollout") for worker in workers)
    assert any(worker.startswith("training") for worker in workers)
    assert found["bob"].workers, f"Nothing is placed on the machine that joined: {found}"
    said = json.loads(lab.marlaas("engine", "status", "--json"))
    assert "bob" in json.dumps(said), "Nobody is told what runs where."
    tasks = [
        lab.submit("sums", "arithmetic", steps=STEPS, tenant="first"),
        lab.submit("guesses", "guess", steps=STEPS, tenant="second", train={"max_staleness": 1}),
        lab.submit("more sums", "arithmetic", steps=STEPS, tenant="second", train={"max_staleness": 0}),
    ]
    endless = lab.submit("endless", "arithmetic", steps=MANY, tenant="third")
    for task in (*tasks, endless):
        lab.until(task, 2)
    lab.marlaas("cluster", "drain", "bob")
    until(lab, lambda rows: rows["bob"].draining and not rows["bob"].workers and len(rows["ada"].workers) >= 2)
    lab.until(endless, lab.row(endless).step + 2)  # it goes on at the machine that is left
    lab.marlaas("cancel", str(endless))
    finished(lab, tasks)
    consumed_once(lab.home, endless)
    for task in tasks:
        assert lab.row(task).step == STEPS
        consumed_once(lab.home, task)
    lab.sound(*tasks, endless)
    for task in tasks:
        out = tmp_path / f"adapter-{task}"
        lab.marlaas("adapters", "export", str(task), "--out", str(out))
        assert (out / "adapter_config.json").exists() and (out / "adapter_model.safetensors").stat().st_size > 0
