"""What each policy gets of a play: the words of its own agents, in order, and nobody else's."""

from dataclasses import replace

import pytest
from hypothesis import given, strategies as st

from marlaas.engine.run.groups.policy_groups import Play, close_parts, part_of
from marlaas.engine.training.advantages import ClosingRules, TooFewRewards, close_group
from marlaas.engine.training.intake import train_group
from marlaas.engine.trajectories import Episode

from ...training.test_advantages import group, trajectory

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


@given(st.lists(st.tuples(st.booleans(), st.booleans(), st.booleans()), min_size=2, max_size=6), st.integers(2, 6))
def test_a_play_closes_for_all_or_is_made_again(members: list[tuple[bool, bool, bool]], least: int) -> None:
    """Whoever did not speak gets an empty group; a play that lost too many members gives nobody one."""
    episodes = tuple(
        Episode(
            place,
            "ok" if well else "error",
            tuple(
                trajectory(1.0 if well else None, agent)
                for agent, spoke in (("solver", solver), ("critic", critic))
                if spoke
            ),
        )
        for place, (well, solver, critic) in enumerate(members)
    )
    play = Play(0, 0, "e", episodes, lost=1, replayed=2)
    rules = [ClosingRules(min_members=least)] * 2
    groups = [part_of(play, 0, {agent}) for agent in ("solver", "critic")]
    assert all((group.lost, group.replayed) == (1, 2) for group in groups)
    closed = close_parts(episodes, groups, rules)
    rewarded = sum(well and (solver or critic) for well, solver, critic in members)
    heard = [sum(well and spoke[agent] for well, *spoke in members) for agent in (0, 1)]
    if rewarded < least or max(heard) < 2:
        assert closed == TooFewRewards(rewarded if rewarded < least else heard[0])
    else:
        assert isinstance(closed, tuple)
        assert [one.rewards.count for one in closed] == [count if count >= 2 else 0 for count in heard]
        again = [close_group(one.group, own) for one, own in zip(closed, rules, strict=True)]
        assert again == list(closed), "what was stored is taken up as it was"
