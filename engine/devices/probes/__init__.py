"""Programs that ask a library which cards it reaches, each in a process of its own: ``python -P -m …`` prints JSON.

The engine must load no such library, and a driver that hangs or crashes must not affect it.
"""
