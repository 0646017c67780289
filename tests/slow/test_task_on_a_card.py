"""Whole tasks that llama.cpp samples on a card: `make test-slow-vulkan` needs none for it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from benchmarks.machinery.fleet import WARM_UP, fleet
from marlaas.engine.devices.software import usable_software
from marlaas.engine.store.queries.reader import Reader

pytestmark = [pytest.mark.slow, pytest.mark.processes, pytest.mark.timeout(1200)]
GAP = 0.02
"""Between log-probabilities of sampler and trainer, on average: half precision on the card."""


def test_tasks_sample_on_the_card_and_train_on_cores() -> None:
    found = usable_software().cards
    if not found:
        pytest.skip("the installed llama.cpp reaches no card: `make test-slow-vulkan` builds one that does")
    settings = f'[rollout]\nsampler = "llama.cpp"\nsequences = 16\ncontext = 256\ndevices = ["{found[0].uuid}"]\n'
    with fleet(settings=settings) as home:
        run = home.run([replace(WARM_UP, name="on a card", steps=4)])
        (task,) = run.tasks
        assert [step.step for step in task.steps] == [1, 2, 3, 4]
        gaps = [step.metrics["gap_mean"] for step in task.steps if "gap_mean" in step.metrics]
        assert gaps and 0 < max(gaps) < GAP
        with Reader(home.home.database) as reader:
            devices = {worker.name: worker.device for worker in reader.workers()}
    assert devices["rollout"] == "gpu 0" and devices["training"].startswith("core")
