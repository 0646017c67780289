"""What our reader finds in a GGUF file is what the gguf package wrote; whatever is cut off is noticed."""

import string
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings, strategies as st

from marlaas.engine.errors import BaseModelError
from marlaas.engine.models.gguf import read_header

from ....examples import examples

NAMES = st.text(string.ascii_lowercase + "._", min_size=1, max_size=20)
SCALARS = st.one_of(
    st.integers(0, 2**32 - 1),
    st.booleans(),
    st.text(min_size=1, max_size=20),
    st.floats(-8, 8, width=32, allow_nan=False),
)
LISTS = st.one_of(
    st.lists(st.integers(-9, 9), min_size=1, max_size=9),
    st.lists(st.text(max_size=9), min_size=1, max_size=9),
    st.lists(st.floats(-8, 8, width=32), min_size=1, max_size=9),
)
KINDS = st.sampled_from([np.float32, np.float16, np.int8])
SHAPES = st.lists(st.integers(1, 5), min_size=1, max_size=3).map(tuple)


def write(path: Path, fields: dict[str, Any], lists: dict[str, Any], tensors: dict[str, Any]) -> None:
    writer = gguf.GGUFWriter(path, "any")
    for key, value in fields.items():
        if isinstance(value, bool):
            writer.add_bool(key, value)
        elif isinstance(value, str):
            writer.add_string(key, value)
        else:
            writer.add_uint32(key, value) if isinstance(value, int) else writer.add_float32(key, value)
    for key, value in lists.items():
        writer.add_array(key, value)
    for name, (shape, kind) in tensors.items():
        writer.add_tensor(name, np.zeros(shape, kind))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


@settings(max_examples=examples(20), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.dictionaries(NAMES, SCALARS, max_size=5),
    st.dictionaries(NAMES.map("list.{}".format), LISTS, max_size=3),
    st.dictionaries(NAMES, st.tuples(SHAPES, KINDS), min_size=1, max_size=4),
    st.floats(0, 1, exclude_max=True),
)
def test_it_reads_what_was_written_and_misses_what_was_not(
    tmp_path: Path, fields: dict[str, Any], lists: dict[str, Any], tensors: dict[str, Any], share: float
) -> None:
    path = tmp_path / "any.gguf"
    write(path, fields, lists, tensors)
    header, data = read_header(path), path.read_bytes()
    assert header.fields == {"general.architecture": "any", **fields}
    assert header.shapes == {name: shape for name, (shape, _) in tensors.items()}
    assert 0 <= len(data) - header.size < 32  # the writer fills up the last tensor
    assert header.number("nothing") == 0

    path.write_bytes(data[: int(header.size * share)])
    with pytest.raises(BaseModelError, match="GGUF file"):
        read_header(path)


def test_quantised_tensors_have_the_size_of_their_blocks(tmp_path: Path) -> None:
    writer = gguf.GGUFWriter(tmp_path / "q.gguf", "any")
    data = gguf.quantize(np.ones((4, 256), np.float32), gguf.GGMLQuantizationType.Q8_0)
    writer.add_tensor("a", data, raw_dtype=gguf.GGMLQuantizationType.Q8_0)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    header = read_header(tmp_path / "q.gguf")
    assert header.shapes == {"a": (4, 256)}
    assert header.size == (tmp_path / "q.gguf").stat().st_size
