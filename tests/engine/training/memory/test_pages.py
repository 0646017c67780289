"""Paged-out policies come back bit for bit; damage is named; folders are private and leave with their process."""

import stat
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import NoReturn

import numpy as np
import pytest
import torch

from marlaas.engine.errors import AdapterError
from marlaas.engine.home.guard import LOCK_FILE
from marlaas.engine.training.inputs import PolicyConfig
from marlaas.engine.training.memory import adapter_cache as module
from marlaas.engine.training.memory.adapter_cache import Pages
from marlaas.engine.training.memory.policy_memory import (
    ALIGNED,
    AdamState,
    Layout,
    PolicyMemory,
    TrainingState,
    to_device,
    to_host,
)

from ..samples import group

CONFIG = PolicyConfig(rank=2, alpha=4.0, epochs=2)
LAYOUT = Layout.of({"q": (3, 5), "v": (4, 1)}, rank=2)


def policy(seed: int = 0) -> PolicyMemory:
    generator = torch.Generator().manual_seed(seed)
    weights, first, second, gradient = (torch.rand(LAYOUT.size, generator=generator) for _ in range(4))
    memory = PolicyMemory.holding(CONFIG, LAYOUT, AdamState(weights, first, second, 14), gradient, version=7)
    memory.tokens, memory.rehearsal, memory.fault = 12, [group(seed)], "a token"
    return memory


def only_file(scratch: Path) -> Path:
    (path,) = (path for path in scratch.glob("marlaas-pages-*/*") if path.name != LOCK_FILE)
    return path


@pytest.mark.parametrize("host", [0, 1 << 20])
def test_all_of_a_policy_comes_back(tmp_path: Path, host: int) -> None:
    pages, before = Pages(tmp_path, host), policy()
    pages.put("a", to_host(policy()))
    assert "a" in pages and any(tmp_path.iterdir()) == (host == 0)
    after = to_device(pages.take("a"), "cpu")
    assert "a" not in pages
    for name in ("weights", "moment1", "moment2"):
        assert torch.equal(getattr(after.optimised, name), getattr(before.optimised, name)), name
    assert torch.equal(after.gradient, before.gradient)
    assert (after.optimised.step, after.version, after.tokens, after.fault) == (14, 7, 12, "a token")
    assert after.config == CONFIG and after.layout == LAYOUT
    (noted,), (expected,) = after.rehearsal, before.rehearsal
    assert all(np.array_equal(a.tokens, b.tokens) for a, b in zip(noted.sequences, expected.sequences, strict=True))
    after.parameters["q.lora_A"].grad.add_(1.0)  # type: ignore[union-attr]
    assert not torch.equal(after.gradient, before.gradient), "gradients of the matrices are views of the vector"


def test_what_comes_back_lies_where_kernels_expect_it(tmp_path: Path) -> None:
    """At another address a kernel may take another path, and add in another order."""
    pages = Pages(tmp_path)
    pages.put("a", to_host(policy()))
    state = pages.take("a")
    unaligned = np.zeros(LAYOUT.size + 1, np.float32)[1:]
    unaligned[:] = state.weights
    for weights in (state.weights, unaligned, np.frombuffer(state.weights.tobytes(), np.float32)):
        memory = to_device(replace(state, weights=weights), "cpu")
        assert memory.optimised.weights.data_ptr() % ALIGNED == 0
        assert torch.equal(memory.optimised.weights, policy().optimised.weights)


def test_a_file_is_written_over_once_its_policy_is_back(tmp_path: Path) -> None:
    """Also by what is smaller; and not more files than that are kept for it."""
    pages, less = Pages(tmp_path), policy(3)
    less.adopt(less.optimised)
    pages.put("a", to_host(policy(1)))
    path = only_file(tmp_path)
    pages.take("a")
    pages.put("b", to_host(less))
    assert only_file(tmp_path) == path
    assert torch.equal(to_device(pages.take("b"), "cpu").optimised.moment2, less.optimised.moment2)
    for number in range(9):
        pages.put(str(number), to_host(policy(number)))
    for number in range(9):
        assert torch.equal(to_device(pages.take(str(number)), "cpu").gradient, policy(number).gradient)
    assert len([one for one in path.parent.iterdir() if one.name != LOCK_FILE]) == module.SPARE


def test_a_gradient_of_nothing_is_not_written(tmp_path: Path) -> None:
    pages, waiting = Pages(tmp_path), policy()
    waiting.adopt(waiting.optimised)
    pages.put("full", to_host(policy()))
    full = only_file(tmp_path).stat().st_size
    pages.drop("full")
    pages.put("empty", to_host(waiting))
    assert only_file(tmp_path).stat().st_size <= full - waiting.gradient.nbytes
    after = to_device(pages.take("empty"), "cpu")
    assert torch.equal(after.gradient, torch.zeros(LAYOUT.size)) and (after.version, after.tokens) == (8, 0)


def test_memory_of_the_host_is_filled_first(tmp_path: Path) -> None:
    paged = to_host(policy())
    pages = Pages(tmp_path, host=paged.size)
    pages.put("a", paged)
    assert list(tmp_path.iterdir()) == []
    pages.put("b", paged)
    assert only_file(tmp_path).stat().st_size > paged.size
    pages.take("a")
    pages.put("c", paged)
    assert only_file(tmp_path), "there was room again"


def test_files_are_for_this_account_alone_and_leave_with_it(tmp_path: Path) -> None:
    pages = Pages(tmp_path)
    for name in ("a", "b", "c"):
        pages.put(name, to_host(policy()))
    (folder,) = tmp_path.iterdir()
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    pages.drop("a")
    pages.drop("b")
    assert only_file(tmp_path)
    pages.close()
    assert list(tmp_path.iterdir()) == []


def test_a_damaged_or_missing_file_fails_its_policy(tmp_path: Path) -> None:
    pages = Pages(tmp_path)
    pages.put("a", to_host(policy()))
    path = only_file(tmp_path)
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)
    with pytest.raises(AdapterError, match=r"Policy a was paged out to .* damaged since\. Resume the task"):
        pages.take("a")
    pages.put("b", to_host(policy()))
    only_file(tmp_path).unlink()
    with pytest.raises(AdapterError, match=r"Policy b was paged out to .* cannot be read: No such file"):
        pages.take("b")
    assert "a" not in pages and "b" not in pages


def test_only_files_of_killed_processes_are_removed(tmp_path: Path) -> None:
    leave = "from marlaas.engine.training.memory.adapter_cache import Pages;"
    leave += f" Pages(__import__('pathlib').Path({str(tmp_path)!r}))"
    subprocess.run([sys.executable, "-P", "-c", f"{leave}._own_folder(); __import__('os')._exit(1)"], check=False)
    (orphan,) = tmp_path.iterdir()
    used = Pages(tmp_path)
    assert not orphan.exists()
    used.put("a", to_host(policy()))
    Pages(tmp_path).put("b", to_host(policy()))
    assert used.take("a").version == 7


def test_a_disk_that_refuses_keeps_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(path: Path, _: TrainingState) -> NoReturn:
        path.write_bytes(b"a part")
        raise OSError(28, "No space left on device")

    pages = Pages(tmp_path)
    with monkeypatch.context() as patch, pytest.raises(OSError, match="No space left"):
        patch.setattr(module, "_write", full)
        pages.put("a", to_host(policy()))
    assert "a" not in pages
    assert list(pages._own_folder().iterdir()) == [pages._own_folder() / LOCK_FILE], "no part of a file is left"
    pages.put("a", replace(to_host(policy()), version=8))
    assert only_file(tmp_path) and pages.take("a").version == 8
