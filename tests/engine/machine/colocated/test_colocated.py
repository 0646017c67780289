"""Sampler and trainer on one device: they compute in turn, and share the tensors of one base."""

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch

from marlaas.engine.errors import BaseModelError
from marlaas.engine.machine.colocated import Gate, Party, named_tensors
from marlaas.engine.models.find import BaseModel, load_base
from marlaas.engine.models.tensors import load
from tools.random_base.make import make_base

from .looking import network_of, parameters_of, tensors_of

PARTIES: tuple[Party, ...] = ("sampler", "trainer")


def in_turn(compute: Callable[[Party], None]) -> None:
    """Both parties at the same time, each in its thread."""
    with ThreadPoolExecutor(2) as threads:
        for done in [threads.submit(compute, party) for party in PARTIES]:
            done.result()


def test_passes_of_two_threads_never_overlap() -> None:
    gate, inside, most = Gate(), 0, 0
    with pytest.raises(ZeroDivisionError), gate.turn("trainer"):
        1 / 0  # noqa: B018 - a pass that fails gives the device back

    def compute(party: Party) -> None:
        nonlocal inside, most
        with gate.busy(party):
            for _ in range(300):
                with gate.turn(party):
                    inside += 1
                    most = max(most, inside)
                    inside -= 1

    in_turn(compute)
    assert most == 1
    for party in ("sampler", "sampler", "trainer", "sampler"):
        compute(party)  # one without the other has all of it


@pytest.mark.parametrize(("sampling", "training"), [(0.05, 1.0), (0.3, 0.3), (0.7, 0.01)])
def test_each_has_half_of_the_time(sampling: float, training: float) -> None:
    """While both have work, whatever their passes take."""
    now, lengths, computed = 0.0, {"sampler": sampling, "trainer": training}, dict.fromkeys(PARTIES, 0.0)
    gate, both = Gate(lambda: now), threading.Barrier(2)

    def compute(party: Party) -> None:
        nonlocal now
        with gate.busy(party):
            both.wait()
            while now < 30.0:
                with gate.turn(party):
                    now += lengths[party]
                    computed[party] += lengths[party]

    in_turn(compute)
    assert abs(computed["sampler"] - computed["trainer"]) <= 2 * max(sampling, training)


CPU = torch.device("cpu")


@pytest.fixture(scope="module", params=["qwen3", "qwen2.5"])
def base(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> BaseModel:
    """With tied rows and without, with biases and without; 1,500 rows are not a multiple of what is padded to."""
    folder = Path(tmp_path_factory.mktemp("base"), request.param)
    return make_base(folder, request.param, rows=1500, tied=request.param == "qwen3")


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_base_is_the_folders_in_the_networks_own_storage(base: BaseModel, dtype: torch.dtype) -> None:
    tensors = named_tensors(network_of(parameters_of(base, dtype)), base.config, dtype)
    held = {tensor.untyped_storage().data_ptr() for tensor in tensors.values()}
    shared = load(base, CPU, dtype, tensors)
    matrices = [shared.embedding, shared.head, *(linear.weight for layer in shared.layers for linear in layer.linears)]
    assert all(matrix.untyped_storage().data_ptr() in held for matrix in matrices)
    for ours, theirs in zip(tensors_of(shared), tensors_of(load(base, CPU, dtype)), strict=True):
        assert torch.equal(ours, theirs)


@pytest.mark.parametrize(
    ("values", "said"),
    [
        (torch.empty(0), r"is float32 \(0,\)"),  # repacked for a processor
        (torch.zeros(160, 512, dtype=torch.int8), r"is int8 \(160, 512\)"),  # quantised
        (torch.zeros(160, 512).to(torch.float8_e4m3fn), r"is float8_e4m3fn \(160, 512\)"),
        (torch.zeros(160, 512, dtype=torch.bfloat16), r"is bfloat16 \(160, 512\)"),  # which would be copied
        (torch.zeros(160, 256), r"is float32 \(160, 256\)"),  # a part on each of two cards
    ],
)
def test_what_is_kept_in_another_form_is_refused(values: torch.Tensor, said: str) -> None:
    tiny = load_base("tiny")
    parameters = parameters_of(tiny)
    parameters["model.layers.2.mlp.down_proj.base_layer.weight"] = values
    with pytest.raises(BaseModelError, match=rf"model.layers.2.mlp.down_proj.weight {said}") as caught:
        named_tensors(network_of(parameters), tiny.config, torch.float32)
    assert "[resources]" in caught.value.hint
    del parameters["model.layers.0.self_attn.qkv_proj.base_layer.weight"]
    with pytest.raises(BaseModelError, match=r"qkv_proj.weight is nothing, not float32 \(256, 160\)"):
        named_tensors(network_of(parameters), tiny.config, torch.float32)
