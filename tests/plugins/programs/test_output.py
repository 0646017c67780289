"""What is kept of what a program prints."""

from __future__ import annotations

import pytest
from hypothesis import given, strategies as st

from marlaas.plugins.programs import run as output
from marlaas.plugins.programs.run import Output


@given(st.lists(st.binary(max_size=30)))
async def test_the_beginning_and_the_end_are_kept(pieces: list[bytes]) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(output, "KEPT", 10)
        patch.setattr(output, "FLOOD", 100)
        floods: list[None] = []
        out = Output(lambda: floods.append(None))
        for piece in pieces:
            out.data_received(piece)
        whole = b"".join(pieces)
        assert (out.cut, out.flood, len(floods)) == (len(whole) > 20, len(whole) > 100, int(len(whole) > 100))
        kept = whole[:10] + b"\n[...]\n" + whole[-10:] if out.cut else whole
        assert out.text() == kept.decode("utf-8", "replace")


async def test_the_end_is_told_once() -> None:
    out = Output(lambda: None)
    out.connection_lost(None)
    out.connection_lost(OSError())
    await out.ended
