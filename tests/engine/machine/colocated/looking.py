"""A colocated worker that can be looked into: whose memory its trainer computes with."""

from typing import Any

from marlaas.engine.machine.colocated import ColocatedWorker

from .network import tensors_of


class LookingWorker(ColocatedWorker):
    async def matrices(self) -> tuple[int, int]:
        """How many bytes the matrices of the trainer's base take, and how many of those lie in vLLM's memory."""
        held = {parameter.untyped_storage().data_ptr() for parameter in self._vllm.engine.model.parameters()}
        model: Any = self._trainer._model
        storages = [tensor.untyped_storage() for tensor in tensors_of(model._model.plain) if tensor.dim() == 2]
        own = {storage.data_ptr(): storage.nbytes() for storage in storages}
        return sum(own.values()), sum(size for address, size in own.items() if address in held)
