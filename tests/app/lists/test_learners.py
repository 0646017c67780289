"""What learns: a task, or each policy that it trains."""

from __future__ import annotations

from marlaas.app.lists.queue_lines import Learner, learner, learners
from marlaas.engine.store.rows import PolicyRow

from ..rows import task


def test_a_task_alone_and_a_task_of_several() -> None:
    alone = task(3)
    assert learners(alone) == {Learner(3): alone} and learner(alone, "whoever") == Learner(3)
    policies = (PolicyRow("old", ("a",), frozen="base"), PolicyRow("adder", ("b",), step=7), PolicyRow("judge", ("c",)))
    several = task(4, policies=policies)
    assert {own.policy: row.step for own, row in learners(several).items()} == {"adder": 7, "judge": 0}
    assert learner(several, "judge") == Learner(4, "judge")
    assert learner(several, "old") == learner(several, "") == Learner(4, "adder"), "what is not trained learns nothing"
    assert (Learner(4, "adder").words, Learner(3).words) == ("task 4, adder", "task 3")
