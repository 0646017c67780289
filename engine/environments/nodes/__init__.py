"""Plugins' processes on other nodes: ``host`` starts them there, ``remote`` is the engine's end."""
