"""What sysctl prints on a Mac with Apple's processor."""

from __future__ import annotations

import pytest

from marlaas.engine.devices.machine import Gpu
from marlaas.engine.devices.survey import METAL, parse, read_apple


def test_a_mac() -> None:
    known = Gpu(0, METAL, "Apple M4 Max", "metal", 48_000_000_000, 30_000_000_000)
    assert parse("Apple M4 Max\n64000000000\n", 30_000_000_000) == (known,)
    assert parse("Apple M1\n8000000000\n", 7_000_000_000)[0].free == 6_000_000_000


@pytest.mark.parametrize("text", ["", "Apple M4\n", "Apple M4\nmuch\n", "a\nb\nc\n"])
def test_what_is_not_understood_is_no_card(text: str) -> None:
    assert parse(text, 1) == ()


def test_other_machines_have_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.platform", "linux")
    assert read_apple(1) == ()
