"""What is made of the words of a program that asks Ray."""

from __future__ import annotations

import sys
import time

import pytest

from marlaas.engine.machine.cluster.joining import MARK, answer_in, ask


def test_the_answer_is_found_among_other_words() -> None:
    said = f"a warning of Ray's\n\n{MARK}" + '{"nodes": []}\nlast words\n'
    assert answer_in(said, 0) == {"nodes": []}


@pytest.mark.parametrize(
    "said", ["x\nInvalidAuthToken\n", "status UNAUTHENTICATED: no\n", "AuthenticationError: bad\n"]
)
def test_a_refused_token_is_known(said: str) -> None:
    assert answer_in(said, 1)["failed"] == "token"


def test_what_fails_otherwise_says_its_last_line() -> None:
    assert answer_in("Traceback\n  boom: it broke\n\n", 1) == {"failed": "other", "why": "boom: it broke"}
    assert answer_in("ray.exceptions.RpcError: RPC error: Deadline.\n", 1)["why"] == "RPC error: Deadline"
    assert (
        answer_in("RpcError: Received http2 header with status: 404\n", 1)["why"]
        == "what listens there does not speak as Ray does"
    )
    assert answer_in("", -9) == {"failed": "other", "why": "status -9"}
    assert answer_in(f"{MARK}[1]", 0)["failed"] == "other"


def test_nobody_is_waited_for_longer_than_asked(monkeypatch: pytest.MonkeyPatch, tmp_path: object) -> None:
    monkeypatch.setattr(sys, "executable", "/bin/sh")  # `sh -P …` ends at once; a program that is not there raises
    assert ask("look", "127.0.0.1:1", {}, seconds=5.0)["failed"] == "other"
    monkeypatch.setattr(sys, "executable", "/nowhere/python")
    begun = time.monotonic()
    assert ask("look", "127.0.0.1:1", {})["failed"] == "other" and time.monotonic() - begun < 5.0
