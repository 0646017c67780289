"""Which policy a question about a task means, and which groups came of one play. SQL alone.

The policy is the one that is named, else the first that the task trains.
"""

POLICY = "(SELECT id FROM policies WHERE task = ? AND name = coalesce(?, name) ORDER BY id LIMIT 1)"
"""The policy's id, for a query. It takes two values: the task, and the policy's name or None."""
BEHIND = "(SELECT id FROM policies WHERE task = ? AND name = coalesce(?, name) ORDER BY step, id LIMIT 1)"
"""As ``POLICY``, but where none is named the one that is furthest behind: the task ends when that one does."""
PLAY = """(SELECT o.id FROM groups g JOIN policies p ON p.id = g.policy JOIN policies q ON q.task = p.task
JOIN groups o ON o.policy = q.id AND o.split = g.split AND o.number = g.number
AND coalesce(o.play, o.id) = coalesce(g.play, g.id) WHERE g.id = ?)"""
"""Ids of the groups that came of one play, for a query. It takes the id of one of them."""
