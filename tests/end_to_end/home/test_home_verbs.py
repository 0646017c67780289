"""A home is backed up, checked and restored while its engine trains; the restored one goes on from that moment."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from marlaas.app.operations.backups import back_up, restore
from marlaas.engine.daemon import control
from marlaas.engine.home.paths import Home
from tests.oracle.audit import audit

from ..conftest import Lab, configured, consumed_once

pytestmark = [pytest.mark.processes, pytest.mark.timeout(600)]


ROUNDS = 1


@pytest.fixture
def lab(tmp_path: Path) -> Iterator[Lab]:
    with configured(tmp_path, "") as lab:
        yield lab


def test_a_home_goes_on_where_it_was_backed_up_while_it_trained(lab: Lab, tmp_path: Path) -> None:
    """Versions are pruned all the time: with two kept, a file lives for two steps."""
    task = lab.submit("sums", steps=5_000, train={"learning_rate": 1e-6, "patience": 100_000, "max_staleness": 1})
    before = lab.until(task, 4).step
    file, new = tmp_path / "kept.tar", Lab(Home(tmp_path / "new"))
    lab.marlaas("home", "backup", str(file))
    assert json.loads(lab.marlaas("home", "check", "--json"))["ok"]
    for number in range(ROUNDS):
        assert audit(lab.home.root, updates=False).sound
        back_up(lab.home, tmp_path / f"{number}.tar")
        other = Home(tmp_path / f"new-{number}")
        restore(tmp_path / f"{number}.tar", other)
        report = audit(other.root, updates=False)
        assert report.sound and not report.spare and report.proven["state files"] >= 2
    after = lab.row(task).step
    assert after > before, "it went on training"
    control.stop(lab.home)
    original = {path: path.read_bytes() for path in lab.home.adapters.rglob("*") if path.is_file()}

    new.marlaas("home", "restore", str(file))
    step = new.row(task).step
    assert before <= step <= after
    control.ensure_running(new.home)
    try:
        assert new.until(task, step + 2).step >= step + 2
    finally:
        control.stop(new.home)
    consumed_once(new.home, task)
    assert audit(new.home.root).lines()[-1] == "Nothing is wrong."
    assert {path: path.read_bytes() for path in lab.home.adapters.rglob("*") if path.is_file()} == original
