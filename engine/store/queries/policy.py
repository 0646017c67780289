"""SQL that selects a policy or a play."""

POLICY = "(SELECT id FROM policies WHERE task = ? AND name = coalesce(?, name) ORDER BY id LIMIT 1)"
"""SQL for a policy's id, by default that of the task's first. Its parameters: the task, and a policy's name or None."""
BEHIND = "(SELECT id FROM policies WHERE task = ? AND name = coalesce(?, name) ORDER BY step, id LIMIT 1)"
"""As ``POLICY``, but by default the policy with the fewest steps: it decides the end of the task."""
PLAY = """(SELECT o.id FROM groups g JOIN policies p ON p.id = g.policy JOIN policies q ON q.task = p.task
JOIN groups o ON o.policy = q.id AND o.split = g.split AND o.number = g.number
AND coalesce(o.play, o.id) = coalesce(g.play, g.id) WHERE g.id = ?)"""
"""SQL for the ids of all groups of one play. Its parameter: the id of one of them."""
