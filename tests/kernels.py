"""A test that asks for ``each_library`` runs with each library that multiplies, or with the one that is forced.

With ``main_library``, for whole samplers and trainers, it runs every day with one: ``make test-slow`` has both,
and ``make test-slow-processors`` forces each.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from .seldom import seldom

VARIABLE = "MARLAAS_KERNELS"
FORCED = os.environ.get(VARIABLE)


@pytest.fixture(params=[FORCED] if FORCED else ["mkl", "onednn"])
def each_library(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Its name; processes that the test starts use it, too."""
    with multiplying(request.param, monkeypatch):
        yield request.param


@pytest.fixture(params=[FORCED] if FORCED else ["mkl", seldom("onednn")])
def main_library(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The same, for what takes long."""
    with multiplying(request.param, monkeypatch):
        yield request.param


@contextmanager
def multiplying(name: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """This library multiplies."""
    torch = pytest.importorskip("torch")
    from marlaas.engine.models.kernels import library

    if name == "onednn" and not torch.backends.mkldnn.is_available():
        pytest.skip("PyTorch without oneDNN")
    monkeypatch.setenv(VARIABLE, name)
    library.cache_clear()
    assert library() == name
    yield
    library.cache_clear()
