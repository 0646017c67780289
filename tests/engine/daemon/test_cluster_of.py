"""Which cluster an engine works over: that of its home's Ray, where this machine is the head."""

import fcntl
import json
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict
from pathlib import Path

import pytest

from marlaas.engine.daemon.planning import cluster_of
from marlaas.engine.errors import ConfigError
from marlaas.engine.home.paths import Home
from marlaas.engine.home.settings import Settings
from marlaas.engine.machine.cluster.joining import LocalNode
from marlaas.engine.models.find import SHIPPED, load_base

HEAD = "10.0.0.5:6379"


@pytest.fixture
def home(tmp_path: Path) -> Home:
    return Home(tmp_path).create()


@pytest.fixture
def ray_of(home: Home) -> Iterator[Callable[[bool], None]]:
    """Has the home's Ray run, as this test holds its lock: on the head, or on a node."""

    @contextmanager
    def holding(is_head: bool) -> Iterator[None]:
        with open(home.node_lock, "w+") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            json.dump(asdict(LocalNode(1, HEAD, is_head, "ada", "10.0.0.7")), lock)
            lock.flush()
            yield

    with ExitStack() as held:
        yield lambda is_head: held.enter_context(holding(is_head))


def test_a_machine_alone_has_none(home: Home) -> None:
    assert cluster_of(home, Settings(), load_base(str(SHIPPED["tiny"]))) is None
    home.node_lock.touch()  # of a Ray that has ended
    assert cluster_of(home, Settings(), load_base(str(SHIPPED["tiny"]))) is None


def test_the_engine_of_a_node_is_refused(home: Home, ray_of: Callable[[bool], None]) -> None:
    ray_of(False)
    with pytest.raises(ConfigError, match=r"a node of the cluster at 10\.0\.0\.5:6379, whose engine runs on its head"):
        cluster_of(home, Settings(), load_base(str(SHIPPED["tiny"])))


def test_the_head_needs_its_token(home: Home, ray_of: Callable[[bool], None]) -> None:
    ray_of(True)
    with pytest.raises(ConfigError, match="no token of the cluster"):
        cluster_of(home, Settings(), load_base(str(SHIPPED["tiny"])))
