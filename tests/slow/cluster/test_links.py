"""What a long link costs: steps take longer, the bound on staleness holds, and the processor has hardly more to do."""

from __future__ import annotations

import time
from pathlib import Path

import psutil
import pytest

from marlaas.engine.home.paths import Home
from tests.end_to_end.conftest import Lab, consumed_once
from tests.slow.waiting import finished
from tools.ray_nodes import VARIABLES, RayNodes

from .delayed import engine_over
from .test_tasks import CLUSTER, SETTINGS, until_placed

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(1800)]
STEPS = 6


@pytest.mark.parametrize("delay", [0.0, 0.001, 0.01, 0.1])
def test_a_slow_link_delays_publishing_only(
    delay: float,
    ray_nodes: RayNodes,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    for name, value in VARIABLES.items():
        monkeypatch.setenv(name, value)
    lab = Lab(Home(tmp_path / "home").create())
    lab.home.config.write_text(SETTINGS + CLUSTER.format(address=ray_nodes.address))
    with engine_over(delay, lab.home):
        lab.marlaas("cluster", "drain", "head")
        until_placed(lab)
        (bridge,) = map(psutil.Process, lab.worker_pids("bridge"))
        engine = psutil.Process(lab.engine_pid())
        spent, begun = seconds_of(bridge), time.monotonic()
        own = seconds_of(engine)
        task = lab.submit("far", "guess", steps=STEPS, train={"max_staleness": 1})
        finished(lab, [task])
        wall = time.monotonic() - begun
        with capsys.disabled():
            print(
                f"\nlink of {1000 * delay:g} ms each way: {wall / STEPS:.2f} s a step,"
                f" bridge {(seconds_of(bridge) - spent) / STEPS:.3f} s of processor time a step,"
                f" engine {(seconds_of(engine) - own) / STEPS:.3f} s"
            )
        consumed_once(lab.home, task)  # no group older than the bound
        lab.sound(task)


def seconds_of(process: psutil.Process) -> float:
    """Processor time of a process so far."""
    times = process.cpu_times()
    return float(times.user + times.system)
