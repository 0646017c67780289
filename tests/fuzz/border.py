"""What fuzzing a border means: bytes in, and either a value that the project can use or the error that it documents.

A border has samples of what is right, the words that mean something to it, and a check, which raises where anything
else comes of an input. Inputs are samples with some of their bytes changed, left out, doubled, or put somewhere else.
"""

from __future__ import annotations

import atexit
import shutil
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from hypothesis import strategies as st

FOLDER = Path(tempfile.mkdtemp(prefix="marlaas-fuzz-"))
"""For inputs that are files; it goes with the process."""
atexit.register(shutil.rmtree, FOLDER, ignore_errors=True)
SECONDS = 10.0
"""Of a processor that one input may take; what is bounded takes less than one, what is not takes minutes."""
_LARGEST = 1 << 20
_NESTED = [open_ * 3000 for open_ in (b"[", b"{", b"(", b'{"a":', b"[[", b"a.")]
_COMMON = [b"", b"\0", b"\n", b"\xff", b"\xed\xa0\x80", b"9" * 5000, b"-1", b"1e999", b"NaN", b"A" * 70_000, *_NESTED]


@dataclass(frozen=True)
class Border:
    """A place at which foreign bytes come in."""

    name: str
    samples: Sequence[bytes]
    words: Sequence[bytes]
    """Tokens of its language."""
    check: Callable[[bytes], object]
    """Reads an input. Raises nothing, whatever it is given, unless something is wrong."""

    def inputs(self) -> st.SearchStrategy[bytes]:
        """Samples, changed in some places; now and then bytes that are no sample's."""
        return st.binary(max_size=64) | _changed(self.samples, [*self.words, *_COMMON])

    def meet(self, data: bytes) -> None:
        """Check one input, and that it did not take long."""
        began = time.process_time()
        self.check(data)
        spent = time.process_time() - began
        assert spent < SECONDS, f"it took {spent:.1f} s of a processor"


@st.composite
def _changed(draw: st.DrawFn, samples: Sequence[bytes], words: Sequence[bytes]) -> bytes:
    data = draw(st.sampled_from(samples))
    for _ in range(draw(st.integers(0, 5))):
        start = draw(st.integers(0, len(data)))
        stop = min(len(data), start + draw(st.integers(0, 24)))
        way = draw(st.sampled_from(("put", "put", "word", "word", "double", "move", "cut")))
        part = data[start:stop]
        match way:
            case "put":
                part = draw(st.binary(max_size=8))
            case "word":
                part = draw(st.sampled_from(words))
            case "double":
                part *= draw(st.sampled_from((2, 40, 4000)))
            case "move":
                other = draw(st.integers(0, len(data)))
                part = data[other : other + 40]
            case _:
                stop = draw(st.sampled_from((stop, len(data))))
                part = b""
        data = (data[:start] + part + data[stop:])[:_LARGEST]
    return data
