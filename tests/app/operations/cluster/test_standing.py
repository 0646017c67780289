"""What doctor says of a cluster, without asking Ray."""

from __future__ import annotations

import fcntl
import json
from collections.abc import Iterator
from dataclasses import asdict, replace

import pytest

from marlaas.app.operations import cluster as module
from marlaas.app.operations.cluster import standing
from marlaas.engine.errors import ConfigError
from marlaas.engine.home.paths import Home
from marlaas.engine.home.settings import ClusterSettings
from marlaas.engine.machine.cluster.joining import LocalNode, make_token

ALONE = ("ok", "none: this machine works alone", "")
SET = ClusterSettings(address="10.0.0.5:6379")


@pytest.fixture
def made(home: Home, monkeypatch: pytest.MonkeyPatch) -> Home:
    monkeypatch.setattr(module, "find_spec", lambda name: object())
    return home.create()


@pytest.fixture
def running(made: Home) -> Iterator[Home]:
    """A home whose Ray runs: this test holds its lock."""
    with open(made.node_lock, "w+") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        json.dump(asdict(LocalNode(1, "10.0.0.5:6379", True, "ada", "10.0.0.5")), lock)
        lock.flush()
        yield made


def test_most_machines_work_alone(made: Home) -> None:
    assert standing(made, ClusterSettings()) == ALONE
    made.node_lock.touch()  # of a Ray that has ended
    assert standing(made, ClusterSettings()) == ALONE


def test_a_head_that_runs_is_well(running: Home) -> None:
    make_token(running, SET)
    assert standing(running, SET) == ("ok", "in that at 10.0.0.5:6379, its head", "")
    verdict, _, advice = standing(running, replace(SET, insecure=True))
    assert verdict == "note" and "whoever reaches its ports" in advice


def test_an_address_whose_ray_has_ended_is_missing(made: Home) -> None:
    make_token(made, SET)
    verdict, value, advice = standing(made, SET)
    assert verdict == "missing" and value.startswith("10.0.0.5:6379 is set") and "`marlaas cluster leave`" in advice
    assert standing(made, replace(SET, address="auto"))[0] == "ok"


def test_a_token_that_is_not_safe_is_said(made: Home) -> None:
    make_token(made, SET).chmod(0o644)
    with pytest.raises(ConfigError, match="Others may read"):
        standing(made, SET)
