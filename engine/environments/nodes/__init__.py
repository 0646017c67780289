"""Processes of plugins on other nodes.

``host`` runs in a worker process on a node and starts plugins' processes there. ``remote`` is the engine's end of it:
it decides which version may run on which node, and chooses the node of the next process.
"""
