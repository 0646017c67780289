"""Rollouts: episodes become trajectories.

Sampled tokens are never tokenised again.
"""
