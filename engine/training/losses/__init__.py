"""The losses: each computes a value for every trained token from its log-probabilities and its advantage.

One family per file; ``catalogue`` finds them by name, ``engine.spec`` has what their papers set.
"""
