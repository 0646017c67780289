"""A report of tasks in one folder that opens anywhere."""

from .telling import (
    Document as Document,
    HomeFacts as HomeFacts,
    Table as Table,
    TaskFacts as TaskFacts,
    Text as Text,
    facts_of as facts_of,
    told as told,
    told_of_home as told_of_home,
)
from .writing import write as write
