"""Several machines, joined by Ray: nodes, their workers, and joining.

A home without ``[cluster]`` never loads this package. Only processes that speak with Ray import it.
"""
