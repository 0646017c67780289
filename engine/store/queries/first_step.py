"""How far a policy's first step is: of the episodes that it needs, how many are there. Standard library only."""

from __future__ import annotations

from dataclasses import dataclass

from .policies import POLICY
from .reader import Reader

_COUNTED = f"""
WITH own AS (
    SELECT p.id, p.name, p.task, p.step,
           coalesce((SELECT json_extract(value, '$.groups_per_step') FROM json_each(t.config, '$.policies')
                     WHERE key = p.name),
                    json_extract(t.config, '$.train.groups_per_step')) AS groups,
           json_extract(t.config, '$.train.group_size') AS size
    FROM policies p JOIN tasks t ON t.id = p.task WHERE p.id = {POLICY} AND t.kind = 'train'
), there AS (
    SELECT number FROM groups, own
    WHERE policy = own.id AND split = 'train' AND state = 'complete' AND number < own.groups
)
SELECT step, groups, size, (SELECT count(*) FROM there) AS complete,
       (SELECT count(DISTINCT m.play || '/' || m.member) FROM open_plays o JOIN open_trajectories m ON m.play = o.id
        WHERE o.task = own.task AND o.number < own.groups AND o.number NOT IN (SELECT number FROM there)) AS open
FROM own
"""


@dataclass(frozen=True)
class FirstStep:
    """What a policy that has made no step yet is waiting for."""

    episodes: int
    """That have ended well, of its first groups."""
    wanted: int
    """That the step needs."""


def first_step(reader: Reader, task: int, policy: str | None = None) -> FirstStep | None:
    """Of a task's policy, by default its first; None once it has made a step, and of evaluations."""
    for row in reader.all(_COUNTED, task, policy):
        if row["step"] == 0 and row["groups"] and row["size"]:
            wanted = row["groups"] * row["size"]
            return FirstStep(min(wanted, row["complete"] * row["size"] + row["open"]), wanted)
    return None
