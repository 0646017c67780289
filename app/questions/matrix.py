"""What the win-rates of a task's versions are, asked once: read in a thread, for a dialog shows them."""

from __future__ import annotations

from marlaas.engine.errors import MarlaasError
from marlaas.engine.home import Home
from marlaas.engine.spec import ONLY

from ..lists.learners import Learner
from ..reading.opening import opened
from ..words.matrix import Matrix, matrices


def win_rates(home: Home, learner: Learner) -> tuple[list[Matrix], str]:
    """The tables of one policy, and what went wrong, in one sentence."""
    try:
        with opened(home) as reader:
            task = reader.task(learner.task)
            policies = task.policies if task else ()
            return matrices(reader.matchups(learner.task), policies, learner.policy or ONLY), ""
    except MarlaasError as error:
        return [], str(error)
