"""A colocated worker that can be looked into: whose memory its trainer computes with, and how often turns changed."""

from typing import Any

from marlaas.engine.fleet.colocated import ColocatedWorker, tensors_of


class LookingWorker(ColocatedWorker):
    def __init__(self, **kwargs: Any) -> None:
        self.moves: list[str] = []
        super().__init__(**kwargs)

    async def matrices(self) -> tuple[int, int]:
        """How many bytes the matrices of the trainer's base take, and how many of those lie in vLLM's memory."""
        held = {parameter.untyped_storage().data_ptr() for parameter in self._vllm.engine.model.parameters()}
        model: Any = self._trainer._model
        storages = [tensor.untyped_storage() for tensor in tensors_of(model._model.plain) if tensor.dim() == 2]
        own = {storage.data_ptr(): storage.nbytes() for storage in storages}
        return sum(own.values()), sum(size for address, size in own.items() if address in held)

    async def switches(self) -> list[str]:
        """What came to the device and went from it, in order."""
        return self.moves

    def _wake(self) -> None:
        self.moves.append("sampler comes")
        super()._wake()

    def _doze(self) -> None:
        self.moves.append("sampler goes")
        super()._doze()
