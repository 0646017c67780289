"""The torch sampler hands out more sequences as turns ask for them, and memory is taken for what is written."""

import asyncio
from pathlib import Path

import pytest

from marlaas.engine.samplers.torch.context import TorchContext
from marlaas.engine.samplers.torch.sampler import TorchSampler

from ...rollout.contract.asking import alone, request, same
from ...rollout.random_base import write_adapter, write_base

pytestmark = pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="the kernel's own count")


def resident() -> int:
    """Bytes that this process holds in memory."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) << 10
    raise AssertionError("The kernel does not say what is resident.")


def written(sampler: TorchSampler) -> int:
    """Sequences that have held a token."""
    context = sampler._context
    assert isinstance(context, TorchContext)
    return int(context._memory[0, 0, :, 0, 0].any(-1).sum())


async def test_a_second_task_with_longer_episodes_changes_no_bit(tmp_path: Path) -> None:
    base = write_base(tmp_path / "base", num_hidden_layers=8, num_key_value_heads=4, head_dim=32)
    before = resident()
    sampler = TorchSampler(str(base.path), sequences=384, context=2048)  # 3.2 GB of keys and values
    for version in range(2):
        await sampler.load(f"v{version}", str(write_adapter(tmp_path / f"{version}", base, version)))
    own = [request(f"own {n}", [5, 6, n + 1], max_tokens=60, seed=n) for n in range(4)]
    expected = [await alone(sampler, each) for each in own]
    assert resident() - before < 200 << 20 and written(sampler) <= 16
    first = [asyncio.ensure_future(alone(sampler, each)) for each in own]
    await asyncio.sleep(0)
    longer = [request(f"{n}", [n % 40 + 2] * 300, max_tokens=20, version="v1", seed=n) for n in range(40)]
    await asyncio.gather(*(alone(sampler, each) for each in longer))
    assert all(map(same, expected, await asyncio.gather(*first)))
    assert resident() - before < 400 << 20 and 40 <= written(sampler) <= 60
    await sampler.close()
