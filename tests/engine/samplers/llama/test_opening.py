"""A sampler that cannot have all the memory that was planned goes on with less, and says so."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from marlaas.engine.errors import ConfigError
from marlaas.engine.models.find import BaseModel
from marlaas.engine.samplers.llama.model import base_file, load_model, open_base

from ...rollout.contract.asking import State

CHILD = """
import asyncio, json, resource, sys
import numpy as np
from marlaas.engine.errors import BaseModelError
from marlaas.engine.samplers.llama.native import llama
from marlaas.engine.samplers.llama.model import LlamaSampler
from marlaas.engine.samplers.protocol import SampleRequest

base, cache, state, room = json.loads(sys.argv[1])
llama()
LlamaSampler(base, cache, sequences=2, context=256)  # the file is written, libraries and threads have their room
taken = next(int(line.split()[1]) << 10 for line in open("/proc/self/status") if line.startswith("VmSize"))
resource.setrlimit(resource.RLIMIT_AS, (taken + (room << 20),) * 2)

async def main():
    sampler = LlamaSampler(base, cache, sequences=254, context=2048, exact=True, first=0)
    await sampler.load("v0", state)
    result = await sampler.generate(SampleRequest("a", "v0", np.array([3, 1, 4], np.int32), 5, 1.0, (), 7))
    limits = await sampler.limits()
    print(json.dumps([limits.sequences, limits.context, limits.note, len(result.tokens)]))

try:
    asyncio.run(main())
except BaseModelError as error:
    print(json.dumps([error.message, error.hint]))
"""


def run(base: BaseModel, state: Path, folder: Path, room: int) -> list[object]:
    """Sample with 254 conversations of 2,048 tokens, 268 MB of memory, in a process that may take ``room`` MB more."""
    argument = json.dumps([str(base.path), str(folder / "cache"), str(state), room])
    done = subprocess.run([sys.executable, "-P", "-c", CHILD, argument], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    assert isinstance(result, list)
    return result


@pytest.mark.processes
@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="the kernel's own count")
@pytest.mark.torch
class TestWithALimit:
    def test_fewer_conversations_where_memory_is_short(self, base: BaseModel, state: State, tmp_path: Path) -> None:
        sequences, context, note, sampled = run(base, state(0), tmp_path, room=270)
        assert isinstance(sequences, int) and 8 <= sequences < 254 and (context, sampled) == (2048, 5)
        assert isinstance(note, str) and f"{sequences} conversations of 2048 tokens instead of 254" in note
        assert "could not make a context of 256 x 2048 tokens" in note

    def test_too_little_for_the_least_is_said_in_a_sentence(
        self, base: BaseModel, state: State, tmp_path: Path
    ) -> None:
        message, hint = run(base, state(0), tmp_path, room=2)
        assert isinstance(message, str) and message.startswith("llama.cpp could not make a context of 10 x 2048 tokens")
        assert hint == "Lower the number of sequences or their length."


def test_a_card_that_is_not_there_is_named(base: BaseModel, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"llama\.cpp sees no card CUDA7"):
        load_model(base_file(base, tmp_path), ("CUDA7",))
    with pytest.raises(ConfigError, match="sees no card CUDA7"):
        open_base(base_file(base, tmp_path), 4, 256, devices=("CUDA7",), layers=(3, 1))
