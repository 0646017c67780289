"""Rows of environments that draw their tasks from data: files, division into splits, and order.

Begin with ``rows.py``.
"""

from .files import all_files, folder_of
from .order import position_of, row_at
from .rows import MOST_ROWS, first_row, held_out, rows_of
from .source import SPLIT, Source
from .survey import Survey, digest_of, survey

__all__ = [
    "MOST_ROWS",
    "SPLIT",
    "Source",
    "Survey",
    "all_files",
    "digest_of",
    "first_row",
    "folder_of",
    "held_out",
    "position_of",
    "row_at",
    "rows_of",
    "survey",
]
