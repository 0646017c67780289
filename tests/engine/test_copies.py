"""Copies that are written out, since they are made for every episode, keep every field."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any, TypeVar

from marlaas.engine.samplers.protocol import SampleRequest
from marlaas.engine.trajectories import Episode, Trajectory

T = TypeVar("T")


def one_of(kind: type[T]) -> T:
    """One whose fields are all different, and equal to nothing else."""
    found: Any = kind
    made: T = found(**{field.name: object() for field in fields(found)})
    return made


def test_judged_trajectories_keep_the_rest() -> None:
    given = one_of(Trajectory)
    assert given.judged(1.5, ()) == replace(given, advantage=1.5, spans=())


def test_episodes_with_other_trajectories_keep_the_rest() -> None:
    given = one_of(Episode)
    assert given.having(()) == replace(given, trajectories=())


def test_requests_of_an_account_keep_the_rest() -> None:
    given = one_of(SampleRequest)
    assert given.of("a:1", "ann", 2.0, alike=False) == replace(
        given, conversation="a:1", account="ann", weight=2.0, alike=False
    )
