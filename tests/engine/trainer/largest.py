"""How large the tensors of a computation become: what shows that something is done in pieces."""

from typing import Any

from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


class Largest(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """While it is entered, ``elements`` is the number of elements of the largest result that is not in ``known``."""

    def __init__(self, *known: int) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.elements = 0
        self._known = known

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        sizes = [part.numel() for part in tree_leaves(result) if isinstance(part, Tensor)]
        self.elements = max([self.elements, *(size for size in sizes if size not in self._known)])
        return result
