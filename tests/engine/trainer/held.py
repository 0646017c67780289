"""How many bytes of tensors a computation holds at a time, and how large its tensors become."""

import weakref
from typing import Any

from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


class Held(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """While it is entered, ``most`` is the largest sum of bytes of what has been made since and still lives."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.most = self._now = 0
        self._known: set[int] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        for part in tree_leaves((args, kwargs)):
            if isinstance(part, Tensor) and part.device.type != "meta":
                self._note(part.untyped_storage())  # whatever was there before
        result = func(*args, **(kwargs or {}))
        for part in tree_leaves(result):
            if isinstance(part, Tensor):
                self._count(part.untyped_storage())
        return result

    def _note(self, storage: Any) -> None:
        key = storage._cdata
        if key not in self._known:  # until it is gone: its place may be another's then
            self._known.add(key)
            weakref.finalize(storage, self._known.discard, key)

    def _count(self, storage: Any) -> None:
        key = storage._cdata
        if key in self._known:
            return
        self._known.add(key)
        self._now += storage.nbytes()
        self.most = max(self.most, self._now)
        weakref.finalize(storage, self._forget, key, storage.nbytes())

    def _forget(self, key: int, size: int) -> None:
        self._known.discard(key)
        self._now -= size


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
