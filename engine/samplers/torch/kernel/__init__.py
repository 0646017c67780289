"""Compiled passes for small bases: all layers of a pass in one call, in C.

``decode.c`` (the passes), ``library`` (compiles, tests and binds it), ``context`` (the interface for the batch
scheduler).
"""
