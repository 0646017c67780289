"""``deterministic = true``: a run is repeatable to the last bit, alone or beside others."""

from __future__ import annotations

import pytest

from marlaas.engine.store.reader import Reader

from .conftest import Lab

pytestmark = [pytest.mark.processes, pytest.mark.timeout(150)]

EXACT = {"deterministic": True, "max_staleness": 0, "groups_per_step": 3, "group_size": 4}


def checksums(lab: Lab, task: int) -> list[str]:
    with Reader(lab.home.database) as reader:
        return [version.checksum for version in reader.versions(task)]


def test_alone_and_beside_others_give_the_same_bits(lab: Lab) -> None:
    alone = lab.submit("alone", "guess", steps=5, train=EXACT)
    lab.marlaas("wait", str(alone))
    beside = lab.submit("beside", "guess", steps=5, train=EXACT)
    other = lab.submit("other", "arithmetic", steps=8)
    lab.marlaas("wait", str(beside), str(other))
    assert checksums(lab, alone) == checksums(lab, beside)
    assert len(set(checksums(lab, alone))) == 6
