"""What ``on_error`` pays for: exceptions that a reply may have caused, and nothing that the machine may have."""

from __future__ import annotations

import errno
import subprocess

import pytest

from marlaas.plugins.environment import env
from marlaas.plugins.host.blame import may_pay
from marlaas.plugins.host.threads import Late, Stopped
from marlaas.plugins.rewards import Skip


def led_to(error: BaseException, then: BaseException) -> BaseException:
    """``then``, raised while ``error`` was handled."""
    then.__context__ = error
    return then


@pytest.mark.parametrize(
    ("error", "paid"),
    [
        (ValueError("no number"), True),
        (RecursionError(), True),
        (OSError(errno.ENOENT, "no such file"), True),
        (led_to(KeyError("x"), ValueError("no number")), True),
        (ExceptionGroup("both", [ValueError(), KeyError()]), True),
        (Skip(), False),
        (SystemExit(), False),
        (Stopped(), False),
        (Late(), False),
        (MemoryError(), False),
        (TimeoutError(), False),
        (subprocess.TimeoutExpired("gcc", 2), False),
        (OSError(errno.EMFILE, "too many open files"), False),
        (BlockingIOError(errno.EAGAIN, "no process can be had"), False),
        (RuntimeError("can't start new thread"), False),
        (led_to(OSError(errno.EMFILE, "too many open files"), ValueError("no grader")), False),
        (ExceptionGroup("both", [ValueError(), TimeoutError()]), False),
    ],
    ids=repr,
)
def test_what_is_paid_for(error: BaseException, paid: bool) -> None:
    assert may_pay(error) is paid


def test_an_error_that_leads_to_itself_ends() -> None:
    error, other = ValueError(), KeyError()
    error.__context__, other.__context__ = other, error
    assert may_pay(error)


@pytest.mark.parametrize("value", ["0", float("nan"), 1e10])
def test_only_a_number_can_be_paid(value: object) -> None:
    with pytest.raises((TypeError, ValueError), match="on_error of play must"):
        env(on_error=value)(play)  # type: ignore[call-overload]


async def play(ep: object) -> float:
    return 1.0
