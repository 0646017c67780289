"""A report of tasks for people who have no home to look into: one folder, which opens anywhere."""

from .document import Document as Document, Table as Table, Text as Text
from .overnight import HomeFacts as HomeFacts, told_of_home as told_of_home
from .telling import TaskFacts as TaskFacts, facts_of as facts_of, told as told
from .writing import write as write
