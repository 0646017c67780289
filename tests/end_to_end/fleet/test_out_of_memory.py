"""A sampler whose memory runs out while tasks train: it goes on with fewer conversations, and nothing is lost."""

from __future__ import annotations

import re
import resource
import sys
import time
from collections.abc import Iterator

import psutil
import pytest

from marlaas.engine.daemon import control
from marlaas.engine.daemon.lock import holder
from marlaas.engine.home.paths import Home
from marlaas.engine.store.queries.reader import Reader
from tests.oracle.audit import audit

from ..conftest import PATIENCE, Lab, consumed_once

pytestmark = [
    pytest.mark.slow,
    pytest.mark.processes,
    pytest.mark.timeout(600),
    pytest.mark.skipif(sys.platform != "linux", reason="limits of Linux"),
]
SPARE = 2 << 20
"""Bytes that the sampler may take beyond what it has: a large adapter and a step with many rows take 16 MB."""
TIGHT = {"MALLOC_ARENA_MAX": "1", "MALLOC_MMAP_THRESHOLD_": "131072"}
"""Has glibc give back what was used: by default a process keeps some 50 MB to itself, in which all of this has room."""
SAID = re.compile(r"The sampler rollout ran out of memory; it goes on with (\d+) conversations instead of (\d+)\.")


@pytest.fixture
def lab(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Iterator[Lab]:
    for name, value in TIGHT.items():
        monkeypatch.setenv(name, value)
    lab = Lab(Home(tmp_path_factory.mktemp("memory") / "home").create())
    lab.home.config.write_text('[rollout]\nsampler = "torch"\nsequences = 200\n')
    control.ensure_running(lab.home)
    yield lab
    if holder(lab.home.lock) is not None:
        control.stop(lab.home)


def shortages(lab: Lab) -> list[re.Match[str]]:
    with Reader(lab.home.database) as reader:
        return [found for event in reader.events() if (found := SAID.fullmatch(event.message))]


def test_it_goes_on_with_fewer_conversations(lab: Lab) -> None:
    small = lab.submit("small", steps=6, train={"max_staleness": 1})
    lab.until(small, 1)
    (sampler,) = lab.worker_pids("rollout")
    limit = psutil.Process(sampler).memory_info().vms + SPARE
    resource.prlimit(sampler, resource.RLIMIT_AS, (limit, resource.RLIM_INFINITY))
    wide = lab.submit("wide", steps=2, policy={"rank": 64}, train={"groups_per_step": 8, "group_size": 24})
    deadline = time.monotonic() + PATIENCE
    while not shortages(lab) and time.monotonic() < deadline:
        time.sleep(0.02)  # the engine is another process: there is nothing to await
    lab.marlaas("wait", str(small), str(wide))
    assert [found.groups() for found in shortages(lab)] == [("100", "200")]
    assert (lab.row(small).step, lab.row(wide).step) == (6, 2)
    for task in (small, wide):
        consumed_once(lab.home, task)
    assert lab.worker_pids("rollout") != [sampler]
    assert audit(lab.home.root, updates=False).sound
