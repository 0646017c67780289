"""Which workers are forked by a template, and that all end together with it."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import psutil
import pytest

from marlaas.engine.machine import plan, supervisor as processes
from marlaas.engine.machine.plan import LLAMA, TORCH, TRAINER, WorkerSpec
from marlaas.engine.machine.supervisor import WorkerProcesses

pytestmark = [
    pytest.mark.processes,
    pytest.mark.skipif(sys.platform != "linux", reason="templates fork on Linux alone"),
]
DUMMY = "tests.engine.machine.workers.dummy:DummyWorker"


@pytest.fixture
def workers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> WorkerProcesses:
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[3]))
    monkeypatch.setattr(plan, "FORKED", (DUMMY,))
    return WorkerProcesses(tmp_path, 0)


def parents(workers: WorkerProcesses) -> dict[str, str]:
    """The module that each worker's parent runs."""
    lines = {name: psutil.Process(handle.pid).parent() for name, handle in workers.handles.items()}
    return {name: parent.cmdline()[3] if parent else "" for name, parent in lines.items()}


def test_torch_on_the_processor_is_forked_and_cards_are_not() -> None:
    sampler, trainer = WorkerSpec("rollout", TORCH, {}, (0,)), WorkerSpec("training", TRAINER, {}, (1,))
    assert all(spec.modules for spec in (sampler, trainer))
    assert not WorkerSpec("rollout", LLAMA, {}, (0,)).modules
    assert not WorkerSpec("training", TRAINER, {}, (1,), gpus=(0,)).modules


async def test_two_that_import_the_same_share_a_template(workers: WorkerProcesses) -> None:
    specs = [WorkerSpec(name, DUMMY, {"greeting": name}, ()) for name in ("one", "two")]
    await workers.start(specs, ())
    template = "marlaas.engine.machine.workers.template"
    assert parents(workers) == {"one": template, "two": template}
    assert [await workers.handles[spec.name].call("greet") for spec in specs] == ["one", "two"]
    forked = psutil.Process(workers.handles["one"].pid).parent()
    workers.forget("one")
    await workers.start_again(specs[0])
    assert parents(workers)["one"] == template
    await workers.stop()
    assert forked is not None and not psutil.pid_exists(forked.pid), "its memory is free, too"


async def test_workers_with_other_numbers_of_cores_start_by_themselves(workers: WorkerProcesses) -> None:
    core = min(os.sched_getaffinity(0))
    cores: dict[str, tuple[int, ...]] = {"one": (core,), "two": (core,), "three": ()}
    await workers.start([WorkerSpec(name, DUMMY, {}, own) for name, own in cores.items()], ())
    forked = {name for name, words in parents(workers).items() if words == "marlaas.engine.machine.workers.template"}
    assert forked == {"one", "two"}
    await workers.stop()


async def test_one_alone_has_no_template(workers: WorkerProcesses) -> None:
    await workers.start([WorkerSpec("one", DUMMY, {}, ())], ())
    assert parents(workers)["one"] != "marlaas.engine.machine.workers.template"
    await workers.stop()


async def test_workers_start_without_a_template_that_cannot(
    workers: WorkerProcesses, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(WorkerSpec, "modules", property(lambda spec: ("no_such_module",)))
    await workers.start([WorkerSpec(name, DUMMY, {}, ()) for name in ("one", "two")], ())
    assert set(parents(workers)) == {"one", "two"}
    assert (workers._logs / f"{processes.TEMPLATE}.log").read_text().count("no_such_module")
    await workers.stop()
