"""What a sampler and a trainer of a real base's size hold in memory, as the kernel counts it."""

import asyncio
from pathlib import Path

import numpy as np
import pytest

from marlaas.engine.machine.plan import LLAMA, TRAINER
from marlaas.engine.machine.workers.handle import LocalLauncher
from marlaas.engine.models.find import BaseModel
from marlaas.engine.samplers.protocol import Sampler, SampleRequest
from marlaas.engine.trainer.protocol import PolicyConfig, Trainer, TrainGroup, TrainSequence

from ..rollout.random_base import write_base

pytestmark = [
    pytest.mark.slow,
    pytest.mark.processes,
    pytest.mark.timeout(900),
    pytest.mark.skipif(not Path("/proc/self/smaps_rollup").exists(), reason="the kernel's own count"),
]


def held(pid: int) -> int:
    """Bytes of a process in memory, pages of mapped files included; those that it shares count in part."""
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    return next(int(line.split()[1]) << 10 for line in lines if line.startswith("Pss:"))


@pytest.fixture
def smol(tmp_path: Path) -> BaseModel:
    """A random base of the sizes of SmolLM2-135M."""
    heads = {"num_attention_heads": 9, "num_key_value_heads": 3, "head_dim": 64}
    sizes = {"hidden_size": 576, "intermediate_size": 1536, "num_hidden_layers": 30, "vocab_size": 49_152}
    return write_base(tmp_path / "base", 0, model_type="llama", max_position_embeddings=8192, **heads, **sizes)


@pytest.mark.parametrize(("length", "limit"), [(170, 2.0), (550, 3.5)])
async def test_a_default_task_on_a_real_base(smol: BaseModel, tmp_path: Path, length: int, limit: float) -> None:
    """96 episodes in flight, each as long as replies of 128 or of 512 tokens can make it: the most that is taken."""
    launcher, common = LocalLauncher(), {"base": str(smol.path), "threads": 1}
    sampling = {"cache": str(tmp_path / "cache"), "sequences": 128, "context": 2048, "exact": True, "weights": "f16"}
    rollout = await launcher.start("rollout", LLAMA, common | sampling, log_path=tmp_path / "log")
    own = {"fingerprint": smol.fingerprint, "scratch": str(tmp_path / "scratch")}
    training = await launcher.start("training", TRAINER, common | own, log_path=tmp_path / "log")
    sampler, trainer = rollout.proxy(Sampler), training.proxy(Trainer)
    await trainer.open("p", PolicyConfig(), str(tmp_path / "0"), False)
    await sampler.load("v0", str(tmp_path / "0"))

    async def play(number: int) -> None:
        prompt = np.arange(length - 4, dtype=np.int32) + 50 * (number // 16)
        await sampler.generate(SampleRequest(f"{number}", "v0", prompt, 4, 1.0, (), number))
        await sampler.release(f"{number}")

    await asyncio.gather(*map(play, range(96)))
    mask = (np.arange(length) >= 42).astype(np.uint8)
    logprobs = np.float32(-10) * mask
    for group in range(1):
        sequences = tuple(
            TrainSequence(np.roll(np.arange(length, dtype=np.int32), n + 1), mask, logprobs, n - 3.5) for n in range(8)
        )
        await trainer.accumulate("p", (TrainGroup(group, sequences),))
    await trainer.step("p", str(tmp_path / "1"))
    sizes = {handle.name: held(handle.pid) for handle in (rollout, training)}
    await asyncio.gather(rollout.stop(), training.stop())
    print(sizes)
    assert sum(sizes.values()) < limit * 1e9, sizes
