"""Pickles numpy arrays between the engine and its workers: a vector of plain numbers is its bytes and one letter.

numpy's own pickles describe every array's type anew, which costs several times what a short vector does. Imports numpy
only where it is needed: a child reads its first frame before it may import what starts threads.
"""

from __future__ import annotations

import copyreg
import sys
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

PLAIN = frozenset("bBhHiIlLqQefd?")
"""Numpy's letters for plain numbers; both ends run on one machine, so their bytes mean the same."""

Reducers = Mapping[type, Callable[[Any], Any]]
_reducers: dict[type, Callable[[Any], Any]] = {}


def reducers() -> Reducers:
    """The ``Pickler.dispatch_table`` to use; it covers arrays once numpy is imported."""
    numpy = sys.modules.get("numpy")
    if numpy is None:
        return copyreg.dispatch_table
    if not _reducers:
        _reducers.update(copyreg.dispatch_table)
        _reducers[numpy.ndarray] = _reduce
    return _reducers


def _reduce(array: NDArray[Any]) -> Any:
    letter = array.dtype.char
    if array.ndim == 1 and letter in PLAIN and array.dtype.isnative:
        return rebuild, (bytearray(array.data), letter)
    return array.__reduce_ex__(5)


def rebuild(data: bytearray, letter: str) -> NDArray[np.generic]:
    """The array, over the memory of ``data``."""
    import numpy

    return numpy.frombuffer(data, letter)
