from dataclasses import replace

import numpy as np

from marlaas.engine.training.intake import train_group

from .test_advantages import group, trajectory


def test_only_the_policys_rewarded_trajectories_are_trained_in_order() -> None:
    silent = replace(trajectory(1.0), mask=np.zeros(2, dtype=np.uint8))
    some = group(
        (replace(trajectory(1.0), advantage=0.1), trajectory(2.0, "critic")),
        (trajectory(None), silent),
        (replace(trajectory(0.0), advantage=-0.1),),
    )
    assert [s.advantage for s in train_group(some, {"solver"}).sequences] == [0.1, -0.1]
    assert len(train_group(some, {"critic"}).sequences) == 1
    assert len(train_group(some).sequences) == 3
    assert train_group(some, {"nobody"}).sequences == ()
    assert train_group(some).number == some.number
