"""The main job with llama.cpp, which samples from all but small bases, from the shipped base in float32 and 8 bits.

In ``make test-slow``: every day, tasks train on llama.cpp and outlive a sampler in ``test_side_by_side``.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from ..conftest import Lab, configured, outlived

pytestmark = [pytest.mark.processes, pytest.mark.slow, pytest.mark.timeout(600)]


@pytest.fixture(params=["f32", "q8_0"])
def llama_lab(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Lab]:
    """A home whose settings name llama.cpp."""
    with configured(tmp_path, f'[rollout]\nsampler = "llama.cpp"\nweights = "{request.param}"\n') as lab:
        yield lab


def test_two_tasks_train_and_outlive_their_sampler(llama_lab: Lab) -> None:
    outlived(llama_lab, "rollout", steps=6)
    assert list(llama_lab.home.base.glob("*.gguf")), "llama.cpp has read no base"
