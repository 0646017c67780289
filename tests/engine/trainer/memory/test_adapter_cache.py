"""Who is in memory: the most recently used, within slots and bytes. Others come back from files bit for bit."""

import stat
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import NoReturn

import numpy as np
import pytest
import torch
from hypothesis import given, strategies as st

from marlaas.engine.errors import AdapterError
from marlaas.engine.home.guard import LOCK_FILE
from marlaas.engine.trainer import memory as module
from marlaas.engine.trainer.memory import ALIGNED, AdamState, AdapterCache, Layout, PolicyMemory, to_device, to_host
from marlaas.engine.trainer.protocol import PolicyConfig

from ..samples import group

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


def test_a_gradient_of_nothing_is_not_written(cache: AdapterCache, tmp_path: Path) -> None:
    waiting = policy()
    waiting.adopt(waiting.optimised)
    for name, memory in {"full": policy(), "empty": waiting, "other": policy()}.items():
        cache.add(name, memory)
    empty, full = sorted(path.stat().st_size for path in files(tmp_path))
    assert empty <= full - waiting.gradient.nbytes
    assert torch.equal(cache.use("empty")[0].gradient, torch.zeros(LAYOUT.size))


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


def test_the_least_recently_used_makes_room(tmp_path: Path) -> None:
    cache = AdapterCache(tmp_path, slots=2)
    for name in "abc":
        cache.add(name, policy())
    assert cache.pages.keys() == {"a"}
    cache.use("b")
    cache.use("a")
    assert cache.pages.keys() == {"c"}
    cache.use("c", "a")
    assert cache.pages.keys() == {"b"}
    cache.drop("c")
    assert len(cache.use("b")) == 1 and not cache.pages


def test_bytes_limit_as_slots_do(tmp_path: Path) -> None:
    size = policy().size
    cache = AdapterCache(tmp_path, room=2 * size)
    for name in "abc":
        cache.add(name, policy())
    assert cache.pages.keys() == {"a"}
    assert cache.fit("ab") and not cache.fit("abc")
    narrow = AdapterCache(tmp_path, room=size - 1)
    narrow.add("x", policy())
    assert narrow.fit("x"), "a single policy is always taken"


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


def test_a_device_without_room_for_who_comes_back_loses_nobody(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> NoReturn:
        raise torch.OutOfMemoryError("CUDA out of memory.")

    cache = AdapterCache(tmp_path, slots=2)
    for number, name in enumerate("abc"):
        cache.add(name, policy(number))
    with monkeypatch.context() as patch:
        patch.setattr(module, "to_device", refuse)
        with pytest.raises(torch.OutOfMemoryError):
            cache.use("a")
    assert torch.equal(cache.use("a")[0].gradient, policy(0).gradient)
    assert torch.equal(cache.use("b")[0].gradient, policy(1).gradient)


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
