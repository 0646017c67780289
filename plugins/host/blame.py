"""The plugin's deepest frame of an error.

A record {message, file, line, traceback} with paths relative to the plugin.
"""

from __future__ import annotations

import errno
import inspect
import subprocess
import traceback
from collections.abc import Callable, Coroutine
from pathlib import Path
from types import CodeType, FrameType, TracebackType
from typing import Any

from ..rewards import Skip
from .channel import Record
from .meter import Late

_LONGEST = 8000
_LONGEST_MESSAGE = 500
"""Characters, for tables and a waiting task's reason."""
_ALARM = "signal only works in main thread"
_ADAPTERS = f"{Path(__file__).parent.parent / 'adapters'}/"


class Blame:
    """Knows the plugin's folder, and so the author's frames."""

    def __init__(self, folder: Path) -> None:
        self._prefix = f"{folder}/"

    def of(self, error: BaseException) -> Record:
        message = _excerpt(f"{type(error).__name__}: {error}" if str(error) else type(error).__name__)
        message += _advice(error)
        file, line = "", 0
        for frame, at in traceback.walk_tb(error.__traceback__):
            if self.owns(frame.f_code):
                file, line = self._relative(frame.f_code.co_filename), at
        if isinstance(error, SyntaxError) and (error.filename or "").startswith(self._prefix):
            file, line = self._relative(error.filename or ""), error.lineno or 0
            message = _excerpt(f"{type(error).__name__}: {error.msg}")
        lines = "".join(traceback.format_exception(type(error), error, self._own_part(error), limit=-12))
        trace = lines.replace(self._prefix, "")[-_LONGEST:] if file or getattr(error, "traced", True) else ""
        return {"message": message, "file": file, "line": line, "traceback": trace}

    def _own_part(self, error: BaseException) -> TracebackType | None:
        """The traceback from the author's first line on, else all of it.

        None for a file that does not compile: its error names the place.
        """
        part = error.__traceback__
        while part is not None and not self.owns(part.tb_frame.f_code):
            part = part.tb_next
        return part if part is not None or isinstance(error, SyntaxError) else error.__traceback__

    def of_function(self, error: BaseException, function: Callable[..., Any]) -> Record:
        """Its place is the line of the ``def``."""
        record = self.of(error)
        code: CodeType | None = getattr(inspect.unwrap(function), "__code__", None)
        if code is not None and self.owns(code):
            if not record["file"]:
                record["traceback"] = ""  # it is of the code that read the function's result
            record.update(file=self._relative(code.co_filename), line=_def_line(function, code))
        return record

    def owns(self, code: CodeType) -> bool:
        return code.co_filename.startswith(self._prefix)

    def called(self, frame: FrameType | None) -> bool:
        """True if the plugin or an adapter called this frame."""
        while frame is not None:
            if frame.f_code.co_filename.startswith((self._prefix, _ADAPTERS)):
                return True
            frame = frame.f_back
        return False

    def _relative(self, filename: str) -> str:
        return filename.removeprefix(self._prefix)


def _def_line(function: Callable[..., Any], code: CodeType) -> int:
    """A code object starts at its first decorator."""
    try:
        source, first = inspect.getsourcelines(function)
    except (OSError, TypeError):
        return code.co_firstlineno
    for offset, text in enumerate(source):
        if text.lstrip().startswith(("def ", "async def ")):
            return first + offset
    return first


def _advice(error: BaseException) -> str:
    if isinstance(error, MemoryError):
        return " (how much it may take is memory_mb under [tool.marlaas])"
    if isinstance(error, AttributeError) and isinstance(error.obj, Coroutine):
        return " (write `await` before the call)"
    if isinstance(error, ValueError) and _ALARM in str(error):
        return " (under @NAME.score it runs in the main thread of another process)"
    return ""


def _excerpt(text: str) -> str:
    return text if len(text) <= _LONGEST_MESSAGE else f"{text[: _LONGEST_MESSAGE - 1]}…"


_OF_THE_MACHINE = (MemoryError, TimeoutError, subprocess.TimeoutExpired, Late)
_SHORTAGES = frozenset((errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.EAGAIN, errno.ENOSPC))
_NO_THREAD = "can't start new thread"


def may_pay(error: BaseException) -> bool:
    """True if the author's exception earns ``on_error``.

    Not a shortage of the machine or a time limit among its causes; each of a group must earn.
    """
    seen, waiting = set[int](), [error]
    while waiting:
        cause = waiting.pop()
        if id(cause) in seen:
            continue
        seen.add(id(cause))
        if not isinstance(cause, Exception) or isinstance(cause, (Skip, *_OF_THE_MACHINE)):
            return False
        if isinstance(cause, OSError) and cause.errno in _SHORTAGES:
            return False
        if isinstance(cause, RuntimeError) and _NO_THREAD in str(cause):
            return False
        before = (cause.__cause__, None if cause.__suppress_context__ else cause.__context__)
        waiting += [each for each in (*before, *getattr(cause, "exceptions", ())) if isinstance(each, BaseException)]
    return True
