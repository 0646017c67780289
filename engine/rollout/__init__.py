"""Rollouts: conversations become tokens, samplers continue them, episodes return as trajectories.

A sampled token is never tokenised again.
"""
