"""What each policy gets of a play: the words of its own agents, in order, and nobody else's."""

from dataclasses import replace

import pytest

from marlaas.engine.run.policy_groups import Play, part_of
from marlaas.engine.training.intake import train_group

from ..training.test_advantages import group, trajectory

SOME = group(
    (replace(trajectory(1.0), advantage=0.1), trajectory(2.0, "critic")),
    (trajectory(None),),
    (replace(trajectory(0.0), advantage=-0.1),),
)
PLAY = Play(SOME.number, SOME.index, SOME.environment_version, SOME.episodes)


@pytest.mark.parametrize(
    ("agents", "advantages"),
    [({"solver"}, [0.1, -0.1]), ({"critic"}, [0.0]), (None, [0.1, 0.0, -0.1]), ({"nobody"}, [])],
)
def test_a_policy_is_trained_on_its_own_agents_alone(agents: set[str] | None, advantages: list[float]) -> None:
    own = part_of(PLAY, 7, agents)
    assert [sequence.advantage for sequence in train_group(own).sequences] == advantages
    assert own.version == 7 and len(own.episodes) == len(SOME.episodes)
