"""A store with a key, what links share, and tenants with versions."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from marlaas.engine.gateway.keys import Identity, new_key
from marlaas.engine.gateway.link import Desk
from marlaas.engine.store.store import Store
from marlaas.engine.store.submissions import add_key

from .answering import Echo
from .clientele import Clientele


class EchoServing:
    """Serves one answerer to every client, and remembers who they were."""

    def __init__(self) -> None:
        self.echo = Echo()
        self.served: list[Identity] = []

    def answerer(self, identity: Identity) -> Echo:
        """The same for all."""
        self.served.append(identity)
        return self.echo


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    store = Store(tmp_path / "marlaas.db", "tiny")
    yield store
    store.close()


@pytest.fixture
def key(store: Store, tmp_path: Path) -> str:
    """A key of ada's."""
    made = new_key("ada")
    add_key(tmp_path / "marlaas.db", "ada", "laptop", made.digest, made.prefix, ("chat",))
    return made.key


@pytest.fixture
def log() -> list[str]:
    return []


@pytest.fixture
def desk(store: Store, log: list[str]) -> Desk:
    return Desk(store.api.key, lambda uses: None, lambda kind, text, level: log.append(text), lambda: 3.0)


@pytest.fixture
def serving(desk: Desk) -> EchoServing:
    """The API is open, and serves."""
    desk.open = True
    serving = EchoServing()
    desk.serving = serving.answerer
    return serving


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
