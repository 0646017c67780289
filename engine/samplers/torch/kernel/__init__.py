"""Compiled passes for small bases: all layers of a pass in one call, in C.

``decode.c`` (the passes), ``library`` (compiles and binds it), ``context`` (the interface for the batch scheduler),
``compare`` (with passes on torch).
"""
