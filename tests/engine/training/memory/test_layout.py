import numpy as np
from hypothesis import given, strategies as st

from marlaas.engine.training.memory import ALIGNMENT, Layout

SIZES = st.integers(1, 40)


@given(st.lists(st.tuples(SIZES, SIZES), min_size=1, max_size=6), st.integers(1, 9))
def test_matrices_are_aligned_and_do_not_overlap(shapes: list[tuple[int, int]], rank: int) -> None:
    layout = Layout.of({f"layer{n}": shape for n, shape in enumerate(shapes)}, rank)
    vector = np.zeros(layout.size, dtype=np.float32)
    for view in layout.views(vector).values():
        assert np.shares_memory(view, vector)
        view += 1
    assert vector.max() == 1
    assert vector.sum() == sum(rank * (inputs + outputs) for inputs, outputs in shapes)
    assert all(entry.start % ALIGNMENT == 0 for entry in layout.entries)


def test_names_and_shapes() -> None:
    layout = Layout.of({"q_proj": (8, 4), "v_proj": (8, 2)}, rank=3)
    assert {entry.name: entry.shape for entry in layout.entries} == {
        "q_proj.lora_A": (3, 8),
        "q_proj.lora_B": (4, 3),
        "v_proj.lora_A": (3, 8),
        "v_proj.lora_B": (2, 3),
    }
