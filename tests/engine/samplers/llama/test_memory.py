"""The estimate of a context's memory is what the kernel counts: never much more, and never less."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given, strategies as st

from marlaas.engine.models.config import BaseConfig
from marlaas.engine.models.memory import BACKEND, GRAPHS, card_bytes, context_bytes, layers_on_card, padded_length

from ...rollout.random_base import write_base

CHILD = """
import json, sys
from pathlib import Path
import numpy as np
from marlaas.engine.models.find import load_base
from marlaas.engine.samplers.llama.model import base_file
from marlaas.engine.samplers.llama.model import open_base

def anonymous():
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) << 10 for line in lines if line.startswith("RssAnon"))

folder, sequences, length, exact = json.loads(sys.argv[1])
base = load_base(folder)
file = base_file(base, Path(folder).with_name("cache"))
before = anonymous()
context = open_base(file, sequences, length, 1, exact).context
def decode(count, prompt, wanted):
    row = np.arange(count, dtype=np.int32)
    places, sequence = (row, row * 0) if prompt else (row * 0, row)
    context.decode(row % 100, places, sequence, wanted)
    for each in range(sequences):
        context.cut(each, 0)
decode(length, True, (np.arange(length) >= length - 128).astype(np.int8))
decode(sequences, False, np.ones(sequences, np.int8))
print(anonymous() - before)
"""


@pytest.mark.torch
@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="the kernel's own count")
@pytest.mark.parametrize(
    ("vocabulary", "sequences", "length", "exact"),
    [
        (60_000, 160, 256, True),
        (2_000, 24, 1024, True),
        (2_000, 8, 4096, True),
        (2_000, 8, 4096, False),
        (60_000, 4, 512, False),
    ],
)
def test_the_estimate_is_what_is_taken(
    tmp_path: Path, vocabulary: int, sequences: int, length: int, exact: bool
) -> None:
    base = write_base(
        tmp_path / "base", vocab_size=vocabulary, num_attention_heads=8, head_dim=32, max_position_embeddings=4096
    )
    argument = json.dumps([str(base.path), sequences, length, exact])
    out = subprocess.run([sys.executable, "-P", "-c", CHILD, argument], check=True, capture_output=True, text=True)
    taken, estimate = int(out.stdout), context_bytes(base.config, sequences, length, exact)
    assert taken < estimate < 1.1 * taken + GRAPHS


@given(st.integers(1, 256), st.integers(1, 9000), st.booleans())
def test_it_grows_with_all_that_is_asked_for(sequences: int, length: int, exact: bool) -> None:
    config = BaseConfig("qwen3", 64, 96, 3, 8, 2, 16, 100, 9000, 1e-6, 1e4)
    assert length <= padded_length(length) < length + 256 and padded_length(length) % 256 == 0
    size = context_bytes(config, sequences, length, exact)
    assert size == context_bytes(config, sequences, padded_length(length), exact)
    assert size < context_bytes(config, sequences + 1, length, exact)
    assert size < context_bytes(config, sequences, length + 256, exact)
    assert context_bytes(config, sequences, length, False) < context_bytes(config, sequences, length, True)


TINY = BaseConfig("qwen3", 64, 96, 3, 8, 2, 16, 100, 9000, 1e-6, 1e4)
HALF_BILLION = BaseConfig("qwen3", 1024, 3072, 28, 16, 8, 128, 151_936, 40_960, 1e-6, 1e6, tie_word_embeddings=True)


def test_a_card_holds_all_that_is_on_it() -> None:
    weights = 1_200_000_000
    everything = card_bytes(HALF_BILLION, weights, 130, 2048, False, 29)
    memory = 28 * 2 * 8 * 128 * 2 * 130 * 2048
    assert everything > weights + memory + BACKEND  # the tied output matrix is copied to the card
    assert everything < 1.2 * (weights + memory + BACKEND)
    assert layers_on_card(HALF_BILLION, weights, 130, 2048, False, everything) == 29


@given(st.integers(0, 1 << 33), st.integers(2, 256), st.integers(1, 4096), st.booleans())
def test_layers_fit_into_the_room_and_no_more_would(room: int, sequences: int, length: int, exact: bool) -> None:
    for config, weights in ((TINY, 1 << 20), (HALF_BILLION, 1 << 30)):
        layers = layers_on_card(config, weights, sequences, length, exact, room)
        assert 0 <= layers <= config.layers + 1
        assert card_bytes(config, weights, sequences, length, exact, layers) <= room
        if layers <= config.layers:
            assert card_bytes(config, weights, sequences, length, exact, layers + 1) > room
