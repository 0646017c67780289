"""Storages come and go under the tensors of a base, whose values and views stay what they were."""

import pytest
import torch

from marlaas.engine.base.model import load_base
from marlaas.engine.base.tensors import load
from marlaas.engine.fleet.colocated import OffloadedBase, tensors_of


def packed(*tensors: torch.Tensor) -> OffloadedBase:
    offloaded = OffloadedBase()
    offloaded.pack(iter(tensors))
    return offloaded


def test_a_tensor_leaves_no_memory_and_returns_whole() -> None:
    tensor = torch.arange(12.0)
    view, before = tensor.view(3, 4)[1:], tensor.clone()
    offloaded = packed(tensor, view)
    assert offloaded.size == 12 * 4  # once, however many views there are
    for _ in range(2):
        offloaded.go()
        assert tensor.untyped_storage().nbytes() == 0
        offloaded.come()
        assert torch.equal(tensor, before) and torch.equal(view, before.view(3, 4)[1:])


def test_what_torch_cannot_free_stays() -> None:
    tensor = torch.from_numpy(torch.arange(4.0).numpy())
    offloaded = packed(tensor)
    offloaded.go()
    assert offloaded.size == 0 and tensor.tolist() == [0.0, 1.0, 2.0, 3.0]


def test_where_there_is_no_room_nothing_is_left_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = torch.arange(4.0), torch.arange(8.0)
    offloaded = packed(first, second)
    offloaded.go()
    resize = torch.UntypedStorage.resize_

    def full(storage: torch.UntypedStorage, size: int) -> None:
        if size == 32:
            raise torch.OutOfMemoryError("no room")
        resize(storage, size)

    monkeypatch.setattr(torch.UntypedStorage, "resize_", full)
    with pytest.raises(torch.OutOfMemoryError):
        offloaded.come()
    assert first.untyped_storage().nbytes() == second.untyped_storage().nbytes() == 0


def test_all_tensors_of_a_base_are_found() -> None:
    base = load(load_base("tiny"), torch.device("cpu"))
    found = list(tensors_of(base))
    layer = base.layers[-1]
    for tensor in (base.embedding, base.head, base.norm, layer.gate_up.weight, layer.mlp_norm, layer.head_norm):
        assert any(tensor is one for one in found)
    assert len(found) == 4 + 7 * len(base.layers)
