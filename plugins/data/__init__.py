"""Rows of environments: files, splits and order.

Begin with ``rows.py``.
"""

from .files import SPLIT, Source, all_files, folder_of
from .rows import MOST_ROWS, digest_of, first_row, held_out, row_at, rows_of

__all__ = [
    "MOST_ROWS",
    "SPLIT",
    "Source",
    "all_files",
    "digest_of",
    "first_row",
    "folder_of",
    "held_out",
    "row_at",
    "rows_of",
]
