"""Exceptions across the process border: a known error arrives as itself, anything else as ``CallFailed``."""

from __future__ import annotations

import traceback

from .. import errors
from ..errors import CallFailed, MarlaasError
from .wire import Failed


def describe(call: int, error: BaseException) -> Failed:
    """The message that stands for an exception."""
    message, hint = (error.message, error.hint) if isinstance(error, MarlaasError) else (str(error), "")
    return Failed(call, type(error).__name__, message, hint, "".join(traceback.format_exception(error)))


def rebuild(failed: Failed, worker: str) -> Exception:
    """The exception to raise in the engine: a ``MarlaasError`` subclass, ``ValueError``, or ``CallFailed``.

    The child's traceback is attached as a note, for the log.
    """
    known = getattr(errors, failed.kind, None)
    error: Exception
    if isinstance(known, type) and issubclass(known, MarlaasError):
        error = known(failed.message, failed.hint)
    elif failed.kind == "ValueError":
        error = ValueError(failed.message)
    else:
        error = CallFailed(f"Worker {worker} failed: {failed.kind}: {failed.message}", "Its log has the traceback.")
    error.add_note(failed.traceback)
    return error
