"""Rows as the store would give them."""

from __future__ import annotations

from dataclasses import replace

from marlaas.engine.store.rows import TaskRow


def task(number: int, **values: object) -> TaskRow:
    row = TaskRow(
        id=number, tenant="bio", name=f"task {number}", environment="sums", state="running", reason="", priority=0,
        step=number, steps=60, reward=number / 10, score=None, best=None, floor=None, adapter_version="", staleness=0.0,
        tokens=0, seconds=1.0, created=1.0, started=None, finished=None,
    )  # fmt: skip
    return replace(row, **values)  # type: ignore[arg-type]
