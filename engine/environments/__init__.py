"""Environments run and score episodes in separate processes, because their code may be hostile."""
