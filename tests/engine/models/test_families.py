"""Every family with a real vocabulary, in two shards: transformers, our trainer and llama.cpp say the same.

Before and after a step, each with the adapter as it is kept in the home and as it is exported.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
import torch

from marlaas.engine.adapters.export import export_adapter
from marlaas.engine.adapters.statefile import read_state
from marlaas.engine.samplers.llama.model import base_file, open_base
from marlaas.engine.trainer.protocol import PolicyConfig
from tests.engine.trainer.oracle import Oracle
from tools.random_base.families import FAMILIES
from tools.random_base.make import make_base

from ...seldom import often
from .made import CONTEXT, Made, gap, greedy, logprobs_of, scores

ROWS = 151_936
CASES = [(family, tied) for family in FAMILIES for tied in (True, False)]
QUICK = [("qwen3", True), ("llama3", False)]
"""Between them they have all that families differ in but biases, which random models of decoders and samplers have."""
LENGTH = 24
CLOSE = 1e-4
"""Largest difference of log-probabilities with float32 weights and memory."""
NEAR = {"f32": 0.1, "f16": 0.1, "q8_0": 1.0}
"""With float16 memory and weights kept like this."""
CONFIG = PolicyConfig(rank=4, alpha=8.0, learning_rate=0.02, denominator=32.0)


@pytest.fixture(
    scope="module",
    params=often(QUICK, CASES),
    ids=lambda case: f"{case[0]}-{'tied' if case[1] else 'untied'}",
)
def made(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Made]:
    torch.set_num_threads(1)
    family, tied = request.param
    folder = tmp_path_factory.mktemp(family)
    base = make_base(folder / "base", family, tied=tied, rows=ROWS, shards=2, seed=CASES.index(request.param))
    assert len(base.weight_files) == 2
    assert base.config.vocab_size == ROWS
    yield Made(f"{family}, {'tied' if tied else 'untied'}", base, folder / "cache")
    for file in folder.rglob("*.*"):  # the next family needs the room
        if file.suffix in (".gguf", ".safetensors"):
            file.unlink()


async def test_greedy_tokens_are_those_of_transformers(
    made: Made, tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    model, trainer = made.transformers(), made.trainer()
    expected = greedy(model, made.prompt, LENGTH)
    assert len(set(expected.tolist())) > LENGTH / 2
    await trainer.open("a", CONFIG, str(tmp_path / "0"), resume=False)
    said = {}
    for name, sampler in (("llama.cpp", made.sampler(exact=True)), ("torch", made.torch_sampler())):
        await sampler.load("0", str(tmp_path / "0"))
        (result,) = await made.answers(sampler, "0", 1, LENGTH, 0.0)
        assert result.tokens.tolist() == expected.tolist(), name
        said[name] = result.logprobs
        await sampler.close()

    tokens, start = np.concatenate([made.prompt, expected]), len(made.prompt)
    reference = logprobs_of(model, tokens, start)
    ours = await trainer.score("a", tokens, start, 1.0)
    trainer.shutdown()
    gaps = {name: gap(logprobs, reference) for name, logprobs in {**said, "trainer": ours}.items()}
    assert max(gaps.values()) < CLOSE
    for weights, most in NEAR.items():
        quick = made.sampler(exact=False, weights=weights)
        await quick.load("0", str(tmp_path / "0"))
        name = f"llama.cpp, {weights}, float16 memory"
        gaps[name] = gap(await quick.score("0", tokens, start, 1.0), reference)
        await quick.close()
        assert gaps[name] < most
    for name, size in gaps.items():
        record_property(f"largest gap, {name}", f"{size:.1e}")
        print(f"{made.name}: largest gap to transformers, {name}: {size:.1e}")


async def test_a_step_matches_peft_and_every_sampler(made: Made, tmp_path: Path) -> None:
    trainer, sampler = made.trainer(), made.sampler(exact=True)
    await trainer.open("a", CONFIG, str(tmp_path / "0"), resume=False)
    await sampler.load("0", str(tmp_path / "0"))
    results = await made.answers(sampler, "0", 4, 8, 1.0)
    group = made.group(results)
    oracle = Oracle(str(made.base.path), tmp_path / "0")
    (norm,) = oracle.steps([[group]], CONFIG)
    stats = await trainer.accumulate("a", (group,))
    stepped = await trainer.step("a", str(tmp_path / "1"))
    assert stats.gap_max < CLOSE
    assert stats.measured == sum(len(result.tokens) for result in results) > 0
    assert stepped.grad_norm == pytest.approx(norm, rel=1e-3)
    assert oracle.distance(read_state(tmp_path / "1")) < CONFIG.learning_rate / 50
    del oracle

    export_adapter(tmp_path / "1", made.base.path, tmp_path / "out", gguf=True)
    assert await sampler.load("1", str(tmp_path / "1")) == stepped.checksum
    context = open_base(base_file(made.base, made.cache), 2, CONTEXT, exact=True).context
    adapter = context.read_adapter(tmp_path / "out" / "adapter.gguf")
    context.use(np.array([adapter]))
    model, start = made.transformers(tmp_path / "out"), len(made.prompt)
    moved = 0.0
    for sequence in group.sequences:
        tokens = sequence.tokens
        trained = await trainer.score("a", tokens, start, 1.0)
        moved = max(moved, gap(trained, sequence.logprobs[start:]))
        assert gap(trained, logprobs_of(model, tokens, start)) < CLOSE
        assert gap(trained, await sampler.score("1", tokens, start, 1.0)) < CLOSE
        assert gap(trained, scores(context, tokens, start)) < CLOSE
    trainer.shutdown()
    await sampler.close()
    context.free_adapter(adapter)
    context.close()
    assert moved > 100 * CLOSE  # else what agrees is the base
