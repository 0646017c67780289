"""A trainer over the tensors of a real vLLM keeps the trainer contract, and both compute with the same memory."""

from collections.abc import Iterator

import pytest
import torch

from marlaas.engine.machine.colocated import considerate_vllm, named_tensors
from marlaas.engine.models.find import BaseModel
from marlaas.engine.models.tensors import Base, load
from marlaas.engine.samplers.vllm.sampler import Engine, VllmSettings

from ...rollout.random_base import write_base
from .network import tensors_of

pytestmark = [pytest.mark.vllm, pytest.mark.filterwarnings("default"), pytest.mark.timeout(300)]
CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> BaseModel:
    return write_base(tmp_path_factory.mktemp("base") / "base", head_dim=32)


@pytest.fixture(scope="module")
def engine(base: BaseModel) -> Iterator[Engine]:
    threads, set_num_threads = torch.get_num_threads(), torch.set_num_threads
    with considerate_vllm():
        engine = Engine(VllmSettings(str(base.path), base.config, sequences=8, context=256, largest_rank=8, slots=2))
    assert torch.set_num_threads is set_num_threads and torch.get_num_threads() == threads
    yield engine
    engine.close()


@pytest.fixture(scope="module")
def shared(engine: Engine, base: BaseModel) -> Base:
    return load(base, CPU, given=named_tensors(engine.model, base.config, torch.float32))


def test_all_matrices_lie_in_vllms_memory(engine: Engine, shared: Base, base: BaseModel) -> None:
    held = {parameter.untyped_storage().data_ptr() for parameter in engine.model.parameters()}
    own = list(tensors_of(load(base, CPU)))
    assert sum(tensor.nbytes for tensor in own if tensor.dim() == 2) > 0.9 * sum(tensor.nbytes for tensor in own)
    for one, other in zip(tensors_of(shared), own, strict=True):
        assert torch.equal(one, other)
    matrices = [shared.embedding, shared.head, *(linear.weight for layer in shared.layers for linear in layer.linears)]
    assert all(matrix.untyped_storage().data_ptr() in held for matrix in matrices)
    assert shared.head is shared.embedding
