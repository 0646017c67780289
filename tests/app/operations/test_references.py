"""How one says which version is meant."""

from __future__ import annotations

from dataclasses import replace

from marlaas.app.operations.commands import arguments, owner, reference
from marlaas.engine.queue.submission.references import choose_at
from marlaas.engine.store.rows import VersionRow

ONLY = VersionRow(1, 17, "lab", "sums", "policy", 12, "task-17/policy-v12", "committed", "", None, "0", "x", 9, 1.0)
JUDGE = replace(ONLY, id=2, policy="judge", name="task-17/judge-v12")


def test_of_a_task_alone_and_of_one_of_several_policies() -> None:
    assert (owner(ONLY), reference(ONLY), arguments(ONLY)) == ("17", "17@12", {"version": 12})
    assert (owner(JUDGE), reference(JUDGE)) == ("17/judge", "17/judge@12")
    assert arguments(JUDGE) == {"version": 12, "policy": "judge"}


def test_a_reference_is_understood() -> None:
    player = replace(JUDGE, id=3, policy="player", name="task-17/player-v12")
    for version in (JUDGE, player):
        assert choose_at([JUDGE, player], reference(version)) == version
