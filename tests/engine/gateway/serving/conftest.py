from collections.abc import Iterator
from pathlib import Path

import pytest

from .clientele import Clientele


@pytest.fixture(scope="module")
def clientele(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Clientele]:
    """Two tenants with versions; tests do not change these."""
    made = Clientele(tmp_path_factory.mktemp("clientele"))
    yield made
    made.store.close()


@pytest.fixture
def own(tmp_path: Path) -> Iterator[Clientele]:
    """The same, to be changed."""
    made = Clientele(tmp_path)
    yield made
    made.store.close()
