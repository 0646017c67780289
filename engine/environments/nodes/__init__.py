"""Processes of plugins on other nodes.

``host`` runs on a node, in a worker process that starts plugins' processes there as the engine does here. ``remote`` is
the engine's end of it. ``reach`` knows which version may run where, and which node the next process goes to.
"""
