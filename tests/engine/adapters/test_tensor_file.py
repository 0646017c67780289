"""Arrays of a file that lie side by side are read together, and come out as they went in."""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory
from unittest.mock import patch

import numpy as np
import pytest
from hypothesis import given, strategies as st

from marlaas.engine.adapters import statefile
from marlaas.engine.adapters.statefile import pieces, read_arrays
from marlaas.engine.errors import AdapterUnreachable


@given(
    sizes=st.lists(st.integers(1, 9), min_size=1, max_size=8),
    wanted=st.sets(st.integers(0, 7)),
    together=st.integers(4, 80),
)
def test_neighbours_are_read_together(sizes: list[int], wanted: set[int], together: int) -> None:
    """However many fit into one read, and whatever lies between them."""
    arrays = {f"{n}": np.arange(100 * n, 100 * n + size, dtype=np.float32) for n, size in enumerate(sizes)}
    chosen = {name: array.tolist() for name, array in arrays.items() if int(name) in wanted}
    with TemporaryDirectory() as folder, patch.object(statefile, "TOGETHER", together):
        path = Path(folder, "file")
        path.write_bytes(b"".join(pieces(arrays, {})))
        _, found = read_arrays(path, chosen.__contains__)
    assert {name: array.tolist() for name, array in found.items()} == chosen


def test_large_neighbours_do_not_share_memory(tmp_path: Path) -> None:
    """One that is kept would keep the others."""
    large = statefile.TOGETHER // 4
    arrays = {"a": np.ones(large, np.float32), "b": np.ones((2, 3), np.float32), "c": np.ones(4, np.float32)}
    (tmp_path / "file").write_bytes(b"".join(pieces(arrays, {})))
    _, found = read_arrays(tmp_path / "file", lambda name: True)
    assert found["b"].base is found["c"].base is not found["a"].base
    assert found["b"].shape == (2, 3) and found["b"].flags.writeable and found["a"].nbytes == statefile.TOGETHER


def test_a_file_that_shrinks_while_it_is_read_is_said(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"".join(pieces({"a": np.ones(4096, np.float32)}, {})))

    def cut(name: str) -> bool:
        with path.open("r+b") as file:
            file.truncate(12000)
        return True

    with pytest.raises(AdapterUnreachable, match="changed while it was read"):
        read_arrays(path, cut)
