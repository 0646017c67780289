"""Verbs about what came of tasks: metrics, win-rates, rollouts, statistics."""
