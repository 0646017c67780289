"""Compiled passes for small bases: all layers of a pass in one call, in C.

``decode.c`` (the passes), ``build`` (compiles it), ``trial`` (where it may crash), ``library`` (its structures and
functions), ``packing`` (the base and adapters as it reads them), ``context`` (what the batch scheduler asks), ``check``
(is it right, is it faster), ``choice`` (when it is used).
"""
