"""Where ``tests.kills`` was: for tests that still import it from here."""

from tests.kills import Lab, TaskFile, exact_pair, finish, opponent_pool, tasks_of

__all__ = ["Lab", "TaskFile", "exact_pair", "finish", "opponent_pool", "tasks_of"]
