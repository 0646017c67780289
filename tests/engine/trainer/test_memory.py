"""What is kept of a policy, in memory and in pages, and how an optimizer step moves it."""

from __future__ import annotations

import stat
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
import pytest
import torch
from hypothesis import given, settings, strategies as st

from marlaas.engine.adapters.statefile import PolicyState, StateHeader
from marlaas.engine.errors import AdapterError
from marlaas.engine.home.guard import LOCK_FILE
from marlaas.engine.trainer import memory as module
from marlaas.engine.trainer.group_pass import learning_rate
from marlaas.engine.trainer.memory import (
    ALIGNED,
    ALIGNMENT,
    AdamState,
    AdapterCache,
    Layout,
    PolicyMemory,
    adamw,
    clip,
    fresh,
    from_state,
    to_device,
    to_host,
    to_state,
)
from marlaas.engine.trainer.protocol import PolicyConfig

from ...examples import examples
from .samples import group

CONFIG = PolicyConfig(rank=2, alpha=4.0, epochs=2)
LAYOUT = Layout.of({"q": (3, 5), "v": (4, 1)}, rank=2)


def policy(seed: int = 0) -> PolicyMemory:
    generator = torch.Generator().manual_seed(seed)
    weights, first, second, gradient = (torch.rand(LAYOUT.size, generator=generator) for _ in range(4))
    memory = PolicyMemory.of(CONFIG, LAYOUT, AdamState(weights, first, second, 14), gradient, version=7)
    memory.tokens, memory.rehearsal, memory.fault = 12, [group(seed)], "a token"
    return memory


def files(scratch: Path) -> list[Path]:
    return [path for path in scratch.glob("marlaas-pages-*/*") if path.name != LOCK_FILE]


@pytest.fixture
def cache(tmp_path: Path) -> AdapterCache:
    return AdapterCache(tmp_path, slots=1)


def test_all_of_a_policy_comes_back(cache: AdapterCache) -> None:
    before = policy()
    cache.add("a", policy())
    cache.add("b", policy(1))
    assert cache.pages.keys() == {"a"}
    (after,) = cache.use("a")
    for name in ("weights", "moment1", "moment2"):
        assert torch.equal(getattr(after.optimised, name), getattr(before.optimised, name)), name
    assert torch.equal(after.gradient, before.gradient)
    assert (after.optimised.step, after.version, after.tokens, after.fault) == (14, 7, 12, "a token")
    assert after.config == CONFIG and after.layout == LAYOUT
    (noted,), (expected,) = after.rehearsal, before.rehearsal
    assert all(np.array_equal(a.tokens, b.tokens) for a, b in zip(noted.sequences, expected.sequences, strict=True))
    after.parameters["q.lora_A"].grad.add_(1.0)  # type: ignore[union-attr]
    assert not torch.equal(after.gradient, before.gradient), "gradients of the matrices are views of the vector"


def test_what_comes_back_lies_where_kernels_expect_it() -> None:
    """At another address a kernel may take another path, and add in another order."""
    state = to_host(policy())
    unaligned = np.zeros(LAYOUT.size + 1, np.float32)[1:]
    unaligned[:] = state.weights
    for weights in (state.weights, unaligned, np.frombuffer(state.weights.tobytes(), np.float32)):
        memory = to_device(replace(state, weights=weights), "cpu")
        assert memory.optimised.weights.data_ptr() % ALIGNED == 0
        assert torch.equal(memory.optimised.weights, policy().optimised.weights)


def test_files_are_private_and_leave(cache: AdapterCache, tmp_path: Path) -> None:
    for name in "abc":
        cache.add(name, policy())
    (folder,) = tmp_path.iterdir()
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700 and len(files(tmp_path)) == 2
    cache.drop("a")
    assert len(files(tmp_path)) == 1
    cache.close()
    assert list(tmp_path.iterdir()) == []


def test_only_files_of_killed_processes_are_removed(tmp_path: Path) -> None:
    script = (
        "import os, pathlib; from marlaas.engine.home.guard import PrivateFolder;"
        f" folder = PrivateFolder(pathlib.Path({str(tmp_path)!r}), {module.PREFIX!r}); os._exit(1)"
    )
    subprocess.run([sys.executable, "-P", "-c", script], check=False)
    (orphan,) = tmp_path.iterdir()
    used = AdapterCache(tmp_path, slots=1)
    assert not orphan.exists()
    used.add("a", policy())
    used.add("b", policy())
    AdapterCache(tmp_path)
    assert used.use("a")[0].version == 7


def test_where_the_disk_takes_nothing_all_stay_in_memory(
    cache: AdapterCache, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(path: Path, _: object) -> NoReturn:
        path.write_bytes(b"a part")
        raise OSError(28, "No space left on device")

    policies = [policy(number) for number in range(3)]
    with monkeypatch.context() as patch:
        patch.setattr(module, "write_page", full)
        for number, memory in enumerate(policies):
            cache.add(str(number), memory)
        assert [cache.use(str(number))[0] for number in range(3)] == policies
        assert files(tmp_path) == [], "no part of a file is left"
    cache.use("0")
    assert cache.pages.keys() == {"1", "2"}


@pytest.mark.parametrize("damage", ["flip", "empty", "remove"])
def test_a_policy_that_cannot_come_back_is_closed_alone(cache: AdapterCache, tmp_path: Path, damage: str) -> None:
    cache.add("a", policy())
    cache.add("b", policy())
    (path,) = files(tmp_path)
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    if damage == "remove":
        path.unlink()
    else:
        path.write_bytes(content if damage == "flip" else b"")
    cache.add("c", policy())
    words = "cannot be read: No such file" if damage == "remove" else r"damaged since\. Resume the task"
    with pytest.raises(AdapterError, match=rf"Policy a was paged out to .* {words}"):
        cache.use("a")
    with pytest.raises(AdapterError, match="Policy a is not open in this trainer"):
        cache.use("a")
    assert cache.use("b")[0].version == cache.use("c")[0].version == 7


@settings(max_examples=examples(10))
@given(st.integers(1, 4), st.lists(st.integers(0, 5), max_size=30))
def test_whoever_is_asked_for_is_there_with_what_it_had(
    tmp_path_factory: pytest.TempPathFactory, slots: int, asked: list[int]
) -> None:
    cache = AdapterCache(tmp_path_factory.getbasetemp(), slots=slots)
    counts = dict.fromkeys(range(6), 0)
    for number in counts:
        cache.add(str(number), policy(number))
    for number in asked:
        cache.use(str(number))[0].tokens += 1
        counts[number] += 1
        assert len(cache.pages) == 6 - slots
    for number, count in counts.items():
        (memory,) = cache.use(str(number))
        assert memory.tokens == 12 + count
        assert torch.equal(memory.gradient, policy(number).gradient)
    cache.close()


ONE_EPOCH = PolicyConfig(rank=2, alpha=4.0)


def state() -> PolicyState:
    torch.manual_seed(0)
    moments = torch.rand(LAYOUT.size), torch.rand(LAYOUT.size)
    return to_state(AdamState(fresh(ONE_EPOCH, LAYOUT).weights, *moments, 7), 5, ONE_EPOCH, LAYOUT, "base")


def test_a_file_that_counts_no_updates_made_one_in_each_step() -> None:
    older = replace(state(), header=StateHeader(2, 4.0, 5, "base"))
    assert from_state(older, ONE_EPOCH, LAYOUT, "base").step == 5


@pytest.mark.parametrize(
    ("broken", "message"),
    [
        (replace(state(), header=replace(state().header, base="other")), "belongs to base model other"),
        (replace(state(), header=replace(state().header, alpha=8.0)), "rank 2 and alpha 8, the policy"),
        (replace(state(), moment1={}), "holds no optimizer moments"),
        (replace(state(), adapter={}), "adapter do not fit the base model: q.lora_A differs"),
        (
            replace(state(), moment2=state().moment2 | {"v.lora_B": np.zeros((2, 2), np.float32)}),
            "second moments do not fit the base model: v.lora_B differs",
        ),
    ],
)
def test_a_state_that_does_not_fit_is_refused(broken: PolicyState, message: str) -> None:
    with pytest.raises(AdapterError, match=message):
        from_state(broken, ONE_EPOCH, LAYOUT, "base")


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


def test_many_steps_are_those_of_torch() -> None:
    torch.manual_seed(0)
    parameter = torch.nn.Parameter(torch.randn(50))
    optimizer = torch.optim.AdamW([parameter], lr=0.01, betas=(0.9, 0.95), weight_decay=0.1)
    state = AdamState(parameter.detach().clone(), torch.zeros(50), torch.zeros(50), 0)
    for _ in range(20):
        parameter.grad = torch.randn(50)
        state = adamw(state, parameter.grad, 0.01, (0.9, 0.95), 0.1)
        optimizer.step()
    assert state.step == 20
    assert torch.allclose(state.weights, parameter.detach(), atol=1e-6)
    assert torch.allclose(state.moment2, optimizer.state[parameter]["exp_avg_sq"], atol=1e-7)


@pytest.mark.parametrize(("limit", "kept"), [(1.0, [0.6, 0.8]), (5.0, [3.0, 4.0]), (0.0, [3.0, 4.0])])
def test_clipping_keeps_the_direction(limit: float, kept: list[float]) -> None:
    clipped, norm = clip(torch.tensor([3.0, 4.0]), limit)
    assert norm == 5.0
    assert clipped.tolist() == pytest.approx(kept)


def test_a_divisor_does_not_slow_the_step_down() -> None:
    """With 1e-8 it does: gradients of 5e-9, as with 64 episodes of up to 512 tokens, move the weights by a third."""
    gradient, state = torch.tensor([5e-9, -2e-7]), AdamState(torch.zeros(2), torch.zeros(2), torch.zeros(2), 0)
    moves = [
        adamw(state, gradient / divisor, 1e-3, (0.9, 0.95), 0.0, epsilon).weights
        for epsilon in (1e-15, 1e-8)
        for divisor in (1.0, 1e-6)
    ]
    for move, expected in zip(moves, ([-1e-3, 1e-3],) * 2 + ([-1e-3 / 3, 0.952e-3], [-1e-3, 1e-3]), strict=True):
        assert move.tolist() == pytest.approx(expected, rel=1e-3)


def rates(config: PolicyConfig, count: int) -> list[float]:
    return [learning_rate(config, step) for step in range(count)]


@pytest.mark.parametrize(
    ("schedule", "warmup", "expected"),
    [
        ("constant", 0, [8.0] * 6),
        ("constant", 2, [4.0, 8.0, 8.0, 8.0, 8.0, 8.0]),
        ("linear", 0, [8.0, 6.0, 4.0, 2.0, 0.0, 0.0]),  # of 4 steps: quarters, and 0 behind them
        ("linear", 2, [4.0, 8.0, 8.0, 4.0, 0.0, 0.0]),
        # 4·(1 + cos 0, cos 45°, cos 90°, cos 135°)
        ("cosine", 0, [8.0, 6.8284271247, 4.0, 1.1715728753, 0.0, 0.0]),
        ("cosine", 3, [8 / 3, 16 / 3, 8.0, 8.0, 0.0, 0.0]),
    ],
)
def test_schedules_by_hand(schedule: str, warmup: int, expected: list[float]) -> None:
    config = PolicyConfig(learning_rate=8.0, schedule=schedule, warmup=warmup, steps=4)
    assert rates(config, 6) == pytest.approx(expected, abs=1e-9)


@pytest.mark.parametrize(
    ("name", "ours", "theirs"),
    [
        ("linear", {}, {}),
        ("cosine", {}, {}),
        ("constant_with_warmup", {}, {}),
        ("inverse_sqrt", {}, {}),
        ("cosine_with_min_lr", {"min_rate": 0.2}, {"min_lr_rate": 0.2}),
        ("warmup_stable_decay", {"min_rate": 0.1, "decay": 5}, {"min_lr_ratio": 0.1, "num_decay_steps": 5}),
    ],
)
def test_schedules_are_those_of_transformers(name: str, ours: dict[str, Any], theirs: dict[str, Any]) -> None:
    """From the end of the warm-up on: its first step has 1 / n of the rate here, and nothing there."""
    from transformers import get_scheduler

    config = PolicyConfig(learning_rate=1.0, schedule=name, warmup=4, steps=20, **ours)
    optimizer = torch.optim.SGD([torch.zeros(1)], lr=1.0)
    made: Any = get_scheduler(name, optimizer, 4, 20, scheduler_specific_kwargs=theirs)
    for step in range(20):
        if step >= 4:
            assert learning_rate(config, step) == pytest.approx(made.get_last_lr()[0]), step
        optimizer.step()
        made.step()
