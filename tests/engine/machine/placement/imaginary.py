"""Imaginary machines, nodes, software and bases, and plans in one line. Rates are the makers' figures, rounded."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from hypothesis import strategies as st

from marlaas.engine.devices.machine import Cpu, Gpu, Kind, Link, Machine, Place, Placement, Rates, Software, UsableNode
from marlaas.engine.machine.placement.choices import Choices, CopySpeed
from marlaas.engine.machine.placement.place import place_over
from marlaas.engine.models.config import BaseConfig
from marlaas.engine.models.memory import FLOAT, Wanted, layer_bytes

GB = 10**9
LAPTOP = Cpu(cores=(0, 1, 2, 3), count=4, memory=12 * GB)
SERVER = Cpu(cores=tuple(range(32)), count=32, memory=500 * GB)
ALL = Software(vllm="0.32.0", torch_cuda=True, llama_backend="cuda", bitsandbytes=True)
NO_VLLM = replace(ALL, vllm="", vllm_reason="There is no vLLM: install marlaas[vllm].")
NO_BNB = replace(ALL, bitsandbytes=False)
NOTHING = Software(
    vllm_reason="There is no vLLM: the driver has no CUDA.", torch_reason="torch is built for the processor alone."
)
LLAMA_ONLY = replace(NO_VLLM, torch_cuda=False, torch_reason="torch is built for the processor alone.")
SPECS: dict[str, tuple[float, tuple[int, int], float, float]] = {
    # name: memory in GB, compute capability, matrix rate in 1e12 a second, bandwidth in 1e12 bytes a second
    "H200": (141, (9, 0), 800, 4.8),
    "H100": (80, (9, 0), 800, 3.3),
    "H20": (96, (9, 0), 140, 4.0),
    "A100": (80, (8, 0), 300, 2.0),
    "L40S": (48, (8, 9), 360, 0.86),
    "4090": (24, (8, 9), 165, 1.0),
    "3060": (12, (8, 6), 50, 0.36),
    "T4": (16, (7, 5), 50, 0.3),
    "V100": (32, (7, 0), 100, 0.9),
    "P40": (24, (6, 1), 10, 0.35),
    "MIG": (18, (9, 0), 110, 0.6),
}


def gpu(name: str, index: int = 0, free: float = -1, measured: bool = True, part: int | None = None) -> Gpu:
    """A card of ``SPECS``; ``free`` in gigabytes, all of it unless told."""
    memory, capability, matrix, bandwidth = SPECS[name]
    return Gpu(
        index=index,
        uuid=f"GPU-{index}{'' if part is None else part}",
        name=name,
        kind="cuda",
        memory=int(memory * GB),
        free=int((memory if free < 0 else free) * GB),
        capability=capability,
        rates=Rates(matrix * 1e12, bandwidth * 1e12) if measured else None,
        part=part,
    )


def other(kind: Kind, gigabytes: float) -> Gpu:
    """A card that is no NVIDIA card."""
    return Gpu(0, f"{kind}-0", kind, kind, int(gigabytes * GB), int(gigabytes * GB))


def machine(*names: str, cpu: Cpu = SERVER) -> Machine:
    """Cards in this order."""
    return Machine(cpu, tuple(gpu(name, index) for index, name in enumerate(names)))


def base(layers: int, hidden: int, inner: int, heads: int, kv: int, vocabulary: int, tied: bool = True) -> Wanted:
    """A Qwen3 of this shape, for eight tasks at a time."""
    config = BaseConfig(
        architecture="qwen3",
        hidden_size=hidden,
        intermediate_size=inner,
        layers=layers,
        heads=heads,
        kv_heads=kv,
        head_dim=128 if hidden > 500 else 32,
        vocab_size=vocabulary,
        context_length=32768,
        norm_eps=1e-6,
        rope_theta=1e6,
        tie_word_embeddings=tied,
    )
    parameters = layer_bytes(config) // FLOAT + (1 if tied else 2) * vocabulary * hidden
    return Wanted(config, parameters, tasks=8)


TINY = base(4, 128, 384, 4, 2, 512)
B06 = base(28, 1024, 3072, 16, 8, 151936)
B17 = base(28, 2048, 6144, 16, 8, 151936)
B8 = base(36, 4096, 12288, 32, 8, 151936, tied=False)
B32 = base(64, 5120, 25600, 64, 8, 151936, tied=False)
B70 = base(80, 8192, 28672, 64, 8, 128256, tied=False)


def shape(plan: Placement) -> str:
    """A plan in one line: ``vllm 0 1 | 2 bf16``, and ``shared`` if a card does both."""
    samplers = " + ".join(
        f"{kind}{f' {weights}' if weights else ''} {' '.join(where)}"
        for (kind, weights), where in _grouped(plan).items()
    )
    trainer = plan.trainer
    return f"{samplers} | {_where(trainer.place)} {trainer.precision}{' shared' * plan.shared}"


def _grouped(plan: Placement) -> dict[tuple[str, str], list[str]]:
    found: dict[tuple[str, str], list[str]] = {}
    for assignment in plan.samplers:
        found.setdefault((assignment.kind, assignment.weights), []).append(_where(assignment.place))
    return found


def _where(place: Place) -> str:
    return " ".join(uuid.removeprefix("GPU-") for uuid in place.gpus) or f"cpu:{len(place.cores)}"


def place(
    on: Machine, software: Software, wanted: Wanted, choices: Choices | None = None, copies: Sequence[CopySpeed] = ()
) -> Placement:
    """The placement on the only machine, all of whose main memory is free."""
    return place_over([UsableNode("", "", on, software, on.cpu.memory)], wanted, choices, copies)


HEAD = "head"
"""The engine's own machine."""
PAIR = replace(LAPTOP, cores=(0, 1), count=2)


def node(name: str, found: Machine, software: Software = ALL, **more: Any) -> UsableNode:
    """A node with all of its memory free; ``HEAD`` is the engine's machine."""
    made = UsableNode("" if name == HEAD else f"id-{name}", name, found, software, found.cpu.memory)
    return replace(made, **more)


def plain(name: str, cpu: Cpu = LAPTOP, **more: Any) -> UsableNode:
    """A node without cards."""
    return node(name, machine(cpu=cpu), NOTHING, **more)


def cards(name: str, *kinds: str, **more: Any) -> UsableNode:
    """A node with these cards."""
    return node(name, machine(*kinds), ALL, **more)


def slow(call: float, bytes_a_second: float) -> Link:
    """A link with so long a way there and back."""
    return Link(call, 1 / bytes_a_second)


def shape_of_nodes(placement: Placement) -> str:
    """``b:0 b:1 | head:2 bf16``: which cards or how many cores of which node sample, and which train how."""
    samplers = " ".join(_at(own.node, own.place.gpus, own.place.cores) for own in placement.samplers)
    trainers = " ".join(_at(own.node, own.place.gpus, own.place.cores) for own in placement.trainers)
    return f"{samplers} | {trainers} {placement.trainer.precision}{' shared' * placement.shared}"


def _at(node: str, gpus: tuple[str, ...], cores: tuple[int, ...]) -> str:
    name = node.removeprefix("id-") or HEAD
    return f"{name}:{'+'.join(uuid.removeprefix('GPU-') for uuid in gpus) or f'cpu{len(cores)}'}"


BASES = [TINY, B06, B17, B8, B32, B70]
card_rates = st.one_of(st.none(), st.builds(Rates, st.floats(1e12, 2e15), st.floats(1e11, 8e12)))
drawn_cards = st.builds(
    lambda gigabytes, share, **more: Gpu(
        index=0, uuid="", name="card", memory=gigabytes * GB, free=int(share * gigabytes * GB), **more
    ),
    gigabytes=st.integers(2, 288),
    share=st.floats(0.0, 1.0),
    kind=st.sampled_from(["cuda", "cuda", "cuda", "vulkan", "metal", "rocm"]),
    capability=st.sampled_from([(6, 1), (7, 0), (7, 5), (8, 0), (9, 0), (12, 0)]),
    rates=card_rates,
    part=st.sampled_from([None, None, None, 1]),
    mode=st.sampled_from(["shared", "shared", "exclusive"]),
)
drawn_cpus = st.builds(
    lambda count, pinned, memory: Cpu(tuple(range(count)) if pinned else (), count, memory * GB),
    st.integers(1, 64),
    st.booleans(),
    st.integers(1, 512),
)


@st.composite
def machines(draw: st.DrawFn) -> Machine:
    found = draw(st.lists(drawn_cards, max_size=6))
    named = (replace(gpu, index=number, uuid=f"GPU-{number}") for number, gpu in enumerate(found))
    return Machine(draw(drawn_cpus), tuple(named))


software = st.builds(
    Software,
    vllm=st.sampled_from(["", "0.32.0"]),
    torch_cuda=st.booleans(),
    llama_backend=st.sampled_from(["cpu", "cuda", "vulkan", "metal"]),
    bitsandbytes=st.booleans(),
)
wishes = st.builds(Choices, sampler=st.sampled_from(["auto", "auto", "llama.cpp"]))
bases = st.builds(
    lambda base, context, tasks, rank: replace(base, context=context, tasks=tasks, largest_rank=rank),
    st.sampled_from(BASES),
    st.sampled_from([0, 0, 512, 16384]),
    st.sampled_from([1, 32, 128]),
    st.sampled_from([1, 64, 256]),
)
