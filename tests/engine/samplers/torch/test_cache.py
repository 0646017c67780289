"""Low-rank terms of many adapters at once are those of each by itself, to the last bit."""

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from marlaas.engine.models.find import BaseModel
from marlaas.engine.models.tensors import Base, load
from marlaas.engine.models.weights import linear_shapes
from marlaas.engine.samplers.torch.cache import AdapterCache, Mix

Adapter = dict[str, NDArray[np.float32]]
ALPHA = 8.0


@pytest.fixture
def loaded(base: BaseModel) -> Base:
    return load(base, torch.device("cpu"))


def adapter(base: BaseModel, seed: int, rank: int) -> Adapter:
    random, tensors = np.random.default_rng(seed), {}
    for module, (out, into) in linear_shapes(base.config).items():
        tensors[f"{module}.lora_A"] = random.normal(size=(rank, into)).astype(np.float32)
        tensors[f"{module}.lora_B"] = random.normal(size=(out, rank)).astype(np.float32)
    return tensors


def added(bank: AdapterCache, loaded: Base, handles: list[int], x: torch.Tensor, number: int = 2) -> torch.Tensor:
    """What the adapters of these rows add to layer ``number``, the fused gates of the first block."""
    y = torch.zeros(len(x), sum(loaded.layers[0].linears[number].outputs))
    Mix(bank, np.array(handles)).add(number, x, y)
    return y


def test_each_row_gets_the_term_of_its_own_adapter(base: BaseModel, loaded: Base) -> None:
    bank = AdapterCache(loaded)
    adapters = [adapter(base, seed, rank) for seed, rank in enumerate([4, 16, 3, 9, 33, 8])]
    handles = [bank.add(each, ALPHA) for each in adapters]
    owner = np.random.default_rng(0).integers(0, len(adapters), 40)
    x = torch.randn(40, base.config.hidden_size, generator=torch.Generator().manual_seed(0))
    y = added(bank, loaded, [handles[n] for n in owner], x)
    for row, n in enumerate(owner):
        halves = []
        for module in loaded.layers[0].gate_up.modules:
            a, b = (torch.from_numpy(adapters[n][f"{module}.lora_{half}"]) for half in "AB")
            halves.append(ALPHA / len(a) * b.double() @ (a.double() @ x[row].double()))
        torch.testing.assert_close(y[row].double(), torch.cat(halves), rtol=1e-4, atol=1e-4)


def test_the_last_bits_do_not_depend_on_other_rows(base: BaseModel, loaded: Base) -> None:
    bank = AdapterCache(loaded)
    handles = [bank.add(adapter(base, seed, rank), ALPHA) for seed, rank in enumerate([4, 16, 3, 9, 33, 8] * 5)]
    x = torch.randn(64, base.config.hidden_size, generator=torch.Generator().manual_seed(0))
    random = np.random.default_rng(0)
    expected = [added(bank, loaded, [handle] * 64, x) for handle in handles]
    for _ in range(20):
        owner = random.integers(0, random.integers(1, len(handles)), 64)
        y = added(bank, loaded, [handles[n] for n in owner], x)
        for row, n in enumerate(owner):
            assert torch.equal(y[row], expected[n][row])


@pytest.mark.parametrize("owners", [[0] * 5, [0] * 9 + [1] * 11, [0] * 8 + [1] * 8, [0, 1] * 10, [0, 1, 2, 3] * 5])
def test_whole_runs_of_rows_get_the_same_terms(base: BaseModel, loaded: Base, owners: list[int]) -> None:
    """But for rounding, whether the rows of an adapter are neighbours or not."""
    bank = AdapterCache(loaded)
    handles = [bank.add(adapter(base, seed, rank), ALPHA) for seed, rank in enumerate([4, 16, 3, 9])]
    rows = np.array([handles[n] for n in owners])
    x = torch.randn(len(rows), base.config.hidden_size, generator=torch.Generator().manual_seed(0))
    mix = Mix(bank, rows, alike=False)
    y = torch.ones(len(rows), sum(loaded.layers[0].gate_up.outputs))
    mix.add(2, x, y)
    torch.testing.assert_close(y, 1.0 + added(bank, loaded, rows.tolist(), x), rtol=1e-4, atol=1e-3)


def test_a_slot_that_is_free_again_holds_nothing_of_before(base: BaseModel, loaded: Base) -> None:
    bank = AdapterCache(loaded)
    x = torch.randn(8, base.config.hidden_size)
    first = bank.add(adapter(base, 0, 16), ALPHA)
    bank.add(adapter(base, 1, 16), ALPHA)
    place = bank.place(first)
    bank.remove(first)
    smaller = adapter(base, 2, 9)
    again = bank.add({name: tensor for name, tensor in smaller.items() if "gate" in name}, ALPHA)
    assert bank.place(again) == place and again != first
    inner = base.config.intermediate_size
    assert (added(bank, loaded, [again] * 8, x)[:, inner:] == 0).all()
    assert (added(bank, loaded, [again] * 8, x)[:, :inner] != 0).any()
    assert (added(bank, loaded, [again] * 8, x, number=0) == 0).all()


def test_many_come_and_go(base: BaseModel, loaded: Base) -> None:
    """Growing moves nobody, and what is loaded again computes the same."""
    bank = AdapterCache(loaded)
    x = torch.randn(8, base.config.hidden_size)
    kept = bank.add(adapter(base, 0, 4), ALPHA)
    expected = added(bank, loaded, [kept] * 8, x)
    handles = [bank.add(adapter(base, seed, 4), ALPHA) for seed in range(1, 100)]
    assert torch.equal(added(bank, loaded, [kept] * 8, x), expected)
    assert [bank.place(handle)[1] for handle in handles] == list(range(1, 100))
    for handle in [kept, *handles]:
        bank.remove(handle)
    again = bank.add(adapter(base, 0, 4), ALPHA)
    assert torch.equal(added(bank, loaded, [again] * 8, x), expected)
