"""The tensors of a network laid out as vLLM's make the same base, without a copy; what cannot be shared is refused."""

from pathlib import Path

import pytest
import torch

from marlaas.engine.errors import BaseModelError
from marlaas.engine.machine.colocated import named_tensors
from marlaas.engine.models.find import BaseModel, load_base
from marlaas.engine.models.tensors import load
from tools.random_base.make import make_base

from .network import Network, tensors_of

CPU = torch.device("cpu")


@pytest.fixture(scope="module", params=["qwen3", "qwen2.5", "llama3"])
def base(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> BaseModel:
    """With tied rows and without, with biases and without; 1,500 rows are not a multiple of what is padded to."""
    folder = Path(tmp_path_factory.mktemp("base"), request.param)
    return make_base(folder, request.param, rows=1500, tied=request.param == "qwen3")


def test_the_base_is_the_folders_in_the_networks_own_storage(base: BaseModel) -> None:
    tensors = named_tensors(Network(base), base.config, torch.float32)
    shared, own = load(base, CPU, given=tensors), load(base, CPU)
    held = {tensor.untyped_storage().data_ptr() for tensor in tensors.values()}
    matrices = [shared.embedding, shared.head, *(linear.weight for layer in shared.layers for linear in layer.linears)]
    assert all(matrix.untyped_storage().data_ptr() in held for matrix in matrices)
    for one, other in zip(tensors_of(shared), tensors_of(own), strict=True):
        assert torch.equal(one, other)


def test_half_precision_matrices_are_shared_as_they_are(base: BaseModel) -> None:
    tensors = named_tensors(Network(base, torch.bfloat16), base.config, torch.bfloat16)
    held = {tensor.untyped_storage().data_ptr() for tensor in tensors.values()}
    shared = load(base, CPU, torch.bfloat16, tensors)
    matrices = [shared.embedding, shared.head, *(linear.weight for layer in shared.layers for linear in layer.linears)]
    assert all(matrix.untyped_storage().data_ptr() in held for matrix in matrices)


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
    network = Network(tiny)
    layer = network.get_submodule("model.layers.2.mlp.down_proj.base_layer")
    layer.weight = torch.nn.Parameter(values, requires_grad=False)
    with pytest.raises(BaseModelError, match=rf"model.layers.2.mlp.down_proj.weight {said}") as caught:
        named_tensors(network, tiny.config, torch.float32)
    assert "[resources]" in caught.value.hint


def test_a_layer_that_is_not_there_is_refused() -> None:
    tiny = load_base("tiny")
    network = Network(tiny)
    del network.get_submodule("model.layers.0.self_attn").qkv_proj
    with pytest.raises(BaseModelError, match=r"qkv_proj.weight is nothing, not float32 \(256, 160\)"):
        named_tensors(network, tiny.config, torch.float32)
