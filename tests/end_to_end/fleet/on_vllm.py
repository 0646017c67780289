"""Tasks on vLLM's build for processors: settings, marks, and a task that learns."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from ..conftest import Lab, configured, consumed_once

MARKS = [
    pytest.mark.vllm,
    pytest.mark.filterwarnings("default"),
    pytest.mark.timeout(900),
    pytest.mark.usefixtures("patience"),
]
TRAIN = {"groups_per_step": 4, "group_size": 8}
SETTINGS = """
[engine]
tasks = 4
[rollout]
sampler = "vllm"
sequences = 64
context = 256
largest_rank = 16
"""


@contextmanager
def on_vllm(folder: Path, more: str = "") -> Iterator[Lab]:
    """A home whose sampler is vLLM, with further settings, and its engine."""
    with configured(folder, SETTINGS + more) as lab:
        yield lab


def learned(lab: Lab) -> int:
    """A task that has made thirty steps, after which it scores more."""
    task = lab.submit("learns", steps=30, train=TRAIN, eval={"prompts": 64, "every": 15})
    lab.marlaas("wait", str(task))
    shown = lab.show(task)
    assert (shown["state"], shown["step"]) == ("done", 30)
    scores = [entry["score"] for entry in shown["eval"]]
    assert scores[-1] > scores[0] + 0.1
    consumed_once(lab.home, task)
    return task
