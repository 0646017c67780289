"""The losses: log-probabilities and advantages of trained tokens in, a value for each of them out.

One family per file; ``catalogue`` finds them by name, ``engine.spec`` says what their papers set.
"""
