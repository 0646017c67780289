"""A policy in a trainer: adapter, AdamW moments, gradient."""

from __future__ import annotations

import logging
import os
import pickle
import threading
import zlib
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import Parameter

from ..adapters.statefile import Array, PolicyState, StateHeader
from ..errors import AdapterDamaged, AdapterError
from ..faults import Point, reach
from ..home.guard import PrivateFolder, remove_orphans
from ..models.weights import targeted

if TYPE_CHECKING:
    from .protocol import PolicyConfig, TrainGroup

# AdamW on a flat vector (Loshchilov and Hutter, arXiv 1711.05101, algorithm 2). Old weights and moments stay: a failed
# step has not happened.


@dataclass(frozen=True)
class AdamState:
    """A vector, its moments and its step count: all float32 (P,)."""

    weights: Tensor
    moment1: Tensor
    moment2: Tensor
    step: int

    def to(self, device: str) -> AdamState:
        return AdamState(self.weights.to(device), self.moment1.to(device), self.moment2.to(device), self.step)


def clip(gradient: Tensor, limit: float) -> tuple[Tensor, float]:
    """Scale to an L2 norm of at most ``limit`` (0: off).

    Summed in float64: its last bit must not depend on padding zeros.
    """
    norm = float(torch.linalg.vector_norm(gradient, dtype=torch.float64))
    if limit > 0.0 and norm > limit:
        gradient = gradient * (limit / norm)
    return gradient, norm


def adamw(
    state: AdamState,
    gradient: Tensor,
    learning_rate: float,
    betas: tuple[float, float],
    weight_decay: float,
    epsilon: float = 1e-8,
) -> AdamState:
    """The state after one step along ``gradient`` (P,)."""
    step, (beta1, beta2) = state.step + 1, betas
    moment1 = torch.lerp(state.moment1, gradient, 1.0 - beta1)
    moment2 = torch.addcmul(state.moment2 * beta2, gradient, gradient, value=1.0 - beta2)
    denominator = (moment2 / (1.0 - beta2**step)).sqrt_().add_(epsilon)
    weights = state.weights * (1.0 - learning_rate * weight_decay)
    weights.addcdiv_(moment1, denominator, value=-learning_rate / (1.0 - beta1**step))
    return AdamState(weights, moment1, moment2, step)


ALIGNMENT = 16
"""64 bytes in float32 elements, an AVX-512 register: kernels give the same bits for each policy."""


V = TypeVar("V", Tensor, NDArray[np.float32])


@dataclass(frozen=True)
class Entry:
    """One matrix: ``<module>.lora_A`` (r, in) or ``<module>.lora_B`` (out, r)."""

    name: str
    shape: tuple[int, int]
    start: int

    @property
    def stop(self) -> int:
        return self.start + self.shape[0] * self.shape[1]


@dataclass(frozen=True)
class Layout:
    """An adapter's matrices, in order of modules."""

    entries: tuple[Entry, ...]
    size: int

    @classmethod
    def of(cls, modules: Mapping[str, tuple[int, int]], rank: int, targets: Sequence[str] = ()) -> Layout:
        """``modules``: name → (in features, out features). Raises ``AdapterError`` for an unknown target."""
        entries, start = [], 0
        for module in targeted(modules, targets):
            inputs, outputs = modules[module]
            for suffix, shape in (("lora_A", (rank, inputs)), ("lora_B", (outputs, rank))):
                entry = Entry(f"{module}.{suffix}", shape, start)
                entries.append(entry)
                start = -(-entry.stop // ALIGNMENT) * ALIGNMENT
        return cls(tuple(entries), start)

    def views(self, vector: V) -> dict[str, V]:
        return {entry.name: vector[entry.start : entry.stop].reshape(entry.shape) for entry in self.entries}


Numbers: TypeAlias = "NDArray[np.float32]"


@dataclass(frozen=True, eq=False)
class ReferenceState:
    """What the KL term pulls to, on the host."""

    rank: int
    alpha: float
    layout: Layout
    weights: Numbers
    """float32 (R,)"""


@dataclass(frozen=True, eq=False)
class TrainingState:
    """A policy's whole training, on the host."""

    config: PolicyConfig
    layout: Layout
    weights: Numbers
    """float32 (P,), as are both moments."""
    moment1: Numbers
    moment2: Numbers
    gradient: Numbers | None
    """float32 (P,); None: zero."""
    reference: ReferenceState | None
    """None: the base."""
    updates: int
    version: int
    tokens: int
    entropies: tuple[float, int]
    entropy_bonus: float
    rehearsal: tuple[TrainGroup, ...]
    """Groups with first-epoch log-probabilities, for several epochs."""
    fault: str


VECTORS = 4


Gathered: TypeAlias = "tuple[Tensor, int, tuple[float, int], tuple[TrainGroup, ...], str]"


@dataclass
class PolicyMemory:
    """``parameters`` are views of the optimised vector, their gradients views of ``gradient``."""

    config: PolicyConfig
    layout: Layout
    optimised: AdamState
    gradient: Tensor
    """float32 (P,)"""
    parameters: dict[str, Parameter]
    version: int = 0
    """Steps made: one update per epoch, unless the gradient is zero."""
    tokens: int = 0
    """Divided once (``step.divisor``)."""
    entropies: tuple[float, int] = 0.0, 0
    """Their sum over this step's measured tokens, and the number of these."""
    entropy_bonus: float = 0.0
    """The weight of the bonus with an entropy target."""
    rehearsal: list[TrainGroup] = field(default_factory=list)
    fault: str = ""
    """Place of a loss not finite: no step can be made."""
    reference: PolicyMemory | None = None
    """Of the KL term, constant; None: the base."""

    @classmethod
    def of(
        cls,
        config: PolicyConfig,
        layout: Layout,
        optimised: AdamState,
        gradient: Tensor | None = None,
        version: int = 0,
        reference: PolicyMemory | None = None,
    ) -> PolicyMemory:
        gradient = torch.zeros_like(optimised.weights) if gradient is None else gradient
        gradients = layout.views(gradient)
        parameters = {}
        for name, view in layout.views(optimised.weights).items():
            parameters[name] = Parameter(view)
            parameters[name].grad = gradients[name]
        return cls(config, layout, optimised, gradient, parameters, version, reference=reference)

    @classmethod
    def frozen(cls, config: PolicyConfig, layout: Layout, weights: Tensor) -> PolicyMemory:
        """A reference with these weights, float32 (P,); no pass with a gradient has it."""
        nothing = weights.new_empty(0)
        return cls.of(config, layout, AdamState(weights, nothing, nothing, 0), gradient=weights)

    @property
    def scale(self) -> float:
        return self.config.alpha / self.config.rank

    @property
    def size(self) -> int:
        return VECTORS * self.gradient.nbytes + (self.reference.gradient.nbytes if self.reference else 0)

    def on(self, device: str) -> PolicyMemory:
        """Without moments, its gradient empty."""
        weights = self.optimised.weights.to(device)
        nothing = weights.new_empty(0)
        state = AdamState(weights, nothing, nothing, self.optimised.step)
        own = self.reference
        reference = own and PolicyMemory.frozen(own.config, own.layout, own.optimised.weights.to(device))
        copy = PolicyMemory.of(self.config, self.layout, state, reference=reference)
        copy.entropy_bonus = self.entropy_bonus
        return copy

    def take(self, copy: PolicyMemory) -> None:
        self.gradient.add_(copy.gradient.to(self.gradient.device))
        self.tokens += copy.tokens
        self.measure(*copy.entropies)
        self.rehearsal += copy.rehearsal
        self.fault = self.fault or copy.fault

    def measure(self, entropy: float, tokens: int) -> None:
        """Add to this step's entropies."""
        self.entropies = self.entropies[0] + entropy, self.entropies[1] + tokens

    @property
    def bonus(self) -> float:
        """The weight of the entropy bonus in this step."""
        return self.entropy_bonus if self.config.entropy_target else self.config.entropy

    @property
    def next_bonus(self) -> float:
        """The weight of the entropy bonus after this step."""
        entropy, tokens = self.entropies
        if not self.config.entropy_target or not tokens:
            return self.entropy_bonus
        low = entropy / tokens < self.config.entropy_target
        return max(0.0, self.entropy_bonus + (self.config.entropy if low else -self.config.entropy))

    def gathered(self) -> Gathered:
        return self.gradient.clone(), self.tokens, self.entropies, tuple(self.rehearsal), self.fault

    def go_back(self, before: Gathered) -> None:
        gradient, self.tokens, self.entropies, rehearsal, self.fault = before
        self.gradient.copy_(gradient)
        self.rehearsal = list(rehearsal)

    def adopt(self, stepped: AdamState) -> None:
        self.optimised.weights.copy_(stepped.weights)
        self.optimised = AdamState(self.optimised.weights, stepped.moment1, stepped.moment2, stepped.step)
        self.version += 1
        self.entropy_bonus = self.next_bonus
        self.gradient.zero_()
        self.tokens, self.entropies = 0, (0.0, 0)
        self.rehearsal = []


def fresh(config: PolicyConfig, layout: Layout) -> AdamState:
    """Version 0: A uniform within ±1/sqrt(in) (Kaiming with a = sqrt(5), as in PEFT), B and moments zero.

    Drawn by numpy: the same on every machine and torch.
    """
    generator = np.random.default_rng(config.seed)
    weights = torch.zeros(layout.size)
    for name, view in layout.views(weights).items():
        if name.endswith(".lora_A"):
            bound = view.shape[1] ** -0.5
            draw = generator.uniform(-bound, bound, size=tuple(view.shape))
            view.copy_(torch.from_numpy(draw.astype(np.float32)))
    return AdamState(weights, torch.zeros(layout.size), torch.zeros(layout.size), 0)


def to_state(
    optimised: AdamState, version: int, config: PolicyConfig, layout: Layout, fingerprint: str, bonus: float = 0.0
) -> PolicyState:
    """A state file's contents, as views; ``bonus``: that of the entropy in the next step."""
    return PolicyState(
        StateHeader(config.rank, config.alpha, version, fingerprint, updates=optimised.step, entropy_bonus=bonus),
        layout.views(optimised.weights.cpu().numpy()),
        layout.views(optimised.moment1.cpu().numpy()),
        layout.views(optimised.moment2.cpu().numpy()),
    )


def from_state(state: PolicyState, config: PolicyConfig, layout: Layout, fingerprint: str) -> AdamState:
    """A resumable state's vectors, bit for bit. Raises ``AdapterDamaged`` on another base or config."""
    header, weights = state.header, weights_of(state, config, layout, fingerprint)
    if not state.resumable:
        raise AdapterDamaged(f"The state of step {header.step} holds no optimizer moments, so training cannot resume.")
    return AdamState(
        weights,
        _flatten(state.moment1, layout, "first moments"),
        _flatten(state.moment2, layout, "second moments"),
        header.step if header.updates is None else header.updates,
    )


def weights_of(state: PolicyState, config: PolicyConfig, layout: Layout, fingerprint: str) -> Tensor:
    """float32 (P,). Raises ``AdapterDamaged`` on another base or config."""
    header = state.header
    if header.base != fingerprint:
        raise AdapterDamaged(
            f"The state belongs to base model {header.base}, but this trainer holds {fingerprint}.",
            "Adapters only fit the base they were trained on: set `base` back, or start the task anew.",
        )
    if (header.rank, header.alpha) != (config.rank, config.alpha):
        raise AdapterDamaged(
            f"The state has rank {header.rank} and alpha {header.alpha:g}, "
            f"the policy is configured with rank {config.rank} and alpha {config.alpha:g}."
        )
    return _flatten(state.adapter, layout, "adapter")


def _flatten(arrays: dict[str, Array], layout: Layout, what: str) -> Tensor:
    expected = {entry.name: entry.shape for entry in layout.entries}
    if expected != {name: array.shape for name, array in arrays.items()}:
        strange = sorted(expected.keys() ^ arrays.keys()) or sorted(
            name for name, shape in expected.items() if arrays[name].shape != shape
        )
        raise AdapterDamaged(f"The state's {what} do not fit the base model: {strange[0]} differs.")
    vector = torch.zeros(layout.size)
    for name, view in layout.views(vector).items():
        view.copy_(torch.from_numpy(np.array(arrays[name], dtype=np.float32)))
    return vector


ALIGNED = 64
"""Bytes: torch's alignment of tensors."""


def to_host(memory: PolicyMemory) -> TrainingState:
    """On a processor views: use them before the policy's next call."""
    optimised = memory.optimised
    return TrainingState(
        config=memory.config,
        layout=memory.layout,
        weights=_array(optimised.weights),
        moment1=_array(optimised.moment1),
        moment2=_array(optimised.moment2),
        gradient=_array(memory.gradient) if memory.tokens else None,
        reference=None if memory.reference is None else _reference_state(memory.reference),
        updates=optimised.step,
        version=memory.version,
        tokens=memory.tokens,
        entropies=memory.entropies,
        entropy_bonus=memory.entropy_bonus,
        rehearsal=tuple(memory.rehearsal),
        fault=memory.fault,
    )


def to_device(state: TrainingState, device: str) -> PolicyMemory:
    """A processor takes over writable arrays."""
    weights, moment1, moment2 = (_tensor(part, device) for part in (state.weights, state.moment1, state.moment2))
    gradient = None if state.gradient is None else _tensor(state.gradient, device)
    optimised = AdamState(weights, moment1, moment2, state.updates)
    reference = None
    if (own := state.reference) is not None:
        config = replace(state.config, rank=own.rank, alpha=own.alpha)
        reference = PolicyMemory.frozen(config, own.layout, _tensor(own.weights, device))
    memory = PolicyMemory.of(state.config, state.layout, optimised, gradient, state.version, reference)
    memory.tokens, memory.rehearsal, memory.fault = state.tokens, list(state.rehearsal), state.fault
    memory.entropies, memory.entropy_bonus = state.entropies, state.entropy_bonus
    return memory


def _reference_state(own: PolicyMemory) -> ReferenceState:
    return ReferenceState(own.config.rank, own.config.alpha, own.layout, _array(own.optimised.weights))


def _array(vector: Tensor) -> Numbers:
    array: Numbers = vector.detach().cpu().numpy()
    return array


def _tensor(array: Numbers, device: str) -> Tensor:
    if not array.flags.writeable or array.ctypes.data % ALIGNED:
        own = torch.empty(len(array))
        own.numpy()[:] = array
        return own.to(device)
    return torch.from_numpy(array).to(device)


# Paged out policies come back bit for bit, with unfinished gradients. Their file is overwritten: making another takes
# longer.

PREFIX = "marlaas-pages-"
HINT = "Resume the task: it goes on from its last committed step."
WORD = 8


@dataclass(frozen=True)
class Page:
    """A pickle then arrays, and their checksum."""

    path: Path
    sizes: tuple[int, ...]
    checksum: int


def write_page(path: Path, state: TrainingState) -> Page:
    """Raises ``OSError``."""
    arrays: list[pickle.PickleBuffer] = []
    index = pickle.dumps(state, protocol=5, buffer_callback=arrays.append)
    parts = [memoryview(index), *(array.raw() for array in arrays)]
    with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600), "wb") as file:
        file.writelines(parts)
    return Page(path, tuple(map(len, parts)), page_checksum(parts))


def page_checksum(parts: Iterable[memoryview]) -> int:
    """The sum of words, a tenth of a CRC's cost.

    It changes with any word, or if blocks are missing or zero.
    """
    checksum = 0
    for part in parts:
        words = len(part) // WORD
        total = int(np.frombuffer(part, np.uint64, words).sum(dtype=np.uint64)) if words else 0
        checksum = (31 * checksum + total + zlib.crc32(part[words * WORD :])) % (1 << 64)
    return checksum


log = logging.getLogger(__name__)


class AdapterCache:
    """At most ``slots`` policies in ``room`` bytes of ``device``, others in ``scratch``; 0: no limit.

    Policies used together are held together, even beyond the limits: check first that they ``fit``. One thread makes
    all calls except ``look``.
    """

    def __init__(self, scratch: Path, slots: int = 0, room: int = 0, device: str = "cpu") -> None:
        self._scratch, self._slots, self._room, self._device = scratch, slots, room, device
        self._held: dict[str, PolicyMemory] = {}
        self._sizes: dict[str, int] = {}
        self.pages: dict[str, Page] = {}
        self._folder: PrivateFolder | None = None
        self._paging = threading.Lock()
        remove_orphans(scratch, PREFIX)

    def add(self, policy: str, memory: PolicyMemory) -> None:
        with self._paging:
            self._forget(policy)
            self._held[policy], self._sizes[policy] = memory, memory.size
            self._make_room((policy,))

    def use(self, *policies: str) -> tuple[PolicyMemory, ...]:
        """In memory until the next call. Raises ``AdapterError`` if one is not open, or unreadable and then closed."""
        with self._paging:
            for policy in policies:
                self._held[policy] = self._held.pop(policy) if policy in self._held else self._page_in(policy)
            self._make_room(policies)
            return tuple(self._held[policy] for policy in policies)

    def look(self, policy: str) -> TrainingState:
        """On a processor views. The policy must not be in use. Raises ``AdapterError`` as ``use`` does."""
        with self._paging:
            return to_host(self._held[policy]) if policy in self._held else self._read(policy)

    def fit(self, policies: Collection[str]) -> bool:
        """A single one always may."""
        size = sum(self._sizes.get(policy, 0) for policy in policies)
        within = (not self._slots or len(policies) <= self._slots) and (not self._room or size <= self._room)
        return within or len(policies) <= 1

    def drop(self, policy: str) -> None:
        with self._paging:
            self._forget(policy)

    def close(self) -> None:
        self.pages.clear()
        if self._folder is not None:
            self._folder.remove()
            self._folder = None

    def _forget(self, policy: str) -> None:
        for known in (self._held, self._sizes, self.pages):
            known.pop(policy, None)
        if self._folder is not None:
            self._file(self._folder, policy).unlink(missing_ok=True)

    def _make_room(self, needed: Collection[str]) -> None:
        for policy in tuple(self._held):
            if self.fit(self._held):
                return
            if policy in needed:
                continue
            try:
                self._page_out(policy, self._held[policy])
            except OSError as error:
                log.warning("Policy %s cannot be paged out and stays in memory: %s.", policy, error.strerror)
                return
            del self._held[policy]

    def _page_out(self, policy: str, memory: PolicyMemory) -> None:
        if self._folder is None:
            self._folder = PrivateFolder(self._scratch, PREFIX)
        path = self._file(self._folder, policy)
        try:
            self.pages[policy] = write_page(path, to_host(memory))
        except OSError:
            path.unlink(missing_ok=True)
            raise
        reach(Point.PAGE_OUT)

    def _file(self, folder: PrivateFolder, policy: str) -> Path:
        return folder.path / sha256(policy.encode()).hexdigest()[:16]

    def _page_in(self, policy: str) -> PolicyMemory:
        try:
            memory = to_device(self._read(policy), self._device)
        except AdapterError:
            self._forget(policy)
            raise
        del self.pages[policy]
        reach(Point.PAGE_IN)
        return memory

    def _read(self, policy: str) -> TrainingState:
        if policy not in self.pages:
            raise AdapterError(f"Policy {policy} is not open in this trainer.")
        page, path = self.pages[policy], self.pages[policy].path
        parts = [torch.empty(size, dtype=torch.uint8).numpy() for size in page.sizes]
        try:
            with open(path, "rb") as file:
                complete = all([file.readinto(part.data) == len(part) for part in parts])
        except OSError as error:
            raise AdapterError(
                f"Policy {policy} was paged out to {path}, which cannot be read: {error.strerror}.", HINT
            ) from error
        if not complete or page_checksum(part.data for part in parts) != page.checksum:
            raise AdapterError(f"Policy {policy} was paged out to {path}, which has been damaged since.", HINT)
        state: TrainingState = pickle.loads(parts[0].data, buffers=parts[1:])
        return state
