"""A report of tasks in one folder that opens anywhere."""

from .telling import (
    Document as Document,
    Table as Table,
    report_of_home as report_of_home,
    report_of_tasks as report_of_tasks,
)
from .writing import write as write
