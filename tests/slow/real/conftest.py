"""The real model as a base, and homes with the five environments of the benchmarks."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from benchmarks.real.base import smollm2
from benchmarks.real.runs import PLUGIN
from tests.end_to_end.conftest import Lab, configured


@pytest.fixture(scope="session")
def base() -> Path:
    return smollm2()


@contextmanager
def real_lab(folder: Path, base: Path, weights: str) -> Iterator[Lab]:
    settings = f'base = {json.dumps(str(base))}\n[rollout]\nweights = "{weights}"\nsequences = 32\ncontext = 512\n'
    with configured(folder, settings) as lab:
        shutil.copytree(PLUGIN, lab.home.plugins / "real", ignore=shutil.ignore_patterns("__pycache__"))
        yield lab


@pytest.fixture(scope="module")
def exact(base: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    """Samples in float32, so that every difference from transformers is a mistake."""
    with ExitStack() as stack:
        yield stack.enter_context(real_lab(tmp_path_factory.mktemp("exact"), base, "f32"))


@pytest.fixture
def by_default(base: Path, tmp_path: Path) -> Iterator[Lab]:
    """Samples in the precision that the engine chooses."""
    with real_lab(tmp_path, base, "auto") as lab:
        yield lab
