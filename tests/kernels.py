"""``each_library``: a test that asks for it runs with each library that multiplies, or with the one that is forced.

Every day with one: ``make test-slow`` has both, and ``make test-slow-processors`` forces each.
"""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from .seldom import seldom

VARIABLE = "MARLAAS_KERNELS"
FORCED = os.environ.get(VARIABLE)


@pytest.fixture(params=[FORCED] if FORCED else ["mkl", seldom("onednn")])
def each_library(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Its name; processes that the test starts use it, too."""
    torch = pytest.importorskip("torch")
    from marlaas.engine.base.kernels import library

    if request.param == "onednn" and not torch.backends.mkldnn.is_available():
        pytest.skip("PyTorch without oneDNN")
    monkeypatch.setenv(VARIABLE, request.param)
    library.cache_clear()
    assert library() == request.param
    yield request.param
    library.cache_clear()
