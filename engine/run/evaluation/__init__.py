"""Held-out scores of a policy, the constant-answer baseline beside them, and what they say about ending a task."""
