"""What holds for every plan, whatever the machine, the base and what is installed."""

from dataclasses import replace

from hypothesis import given, strategies as st

from marlaas.engine.devices.machine import (
    Cpu,
    Gpu,
    Machine,
    Placement,
    Rates,
    SamplerAssignment,
    Software,
    TrainerAssignment,
)
from marlaas.engine.machine.placement.capacity import usable
from marlaas.engine.machine.placement.choices import Choices
from marlaas.engine.models.memory import Wanted
from tests.engine.machine.placement.imaginary import B06, B8, B17, B32, B70, GB, TINY, place

BASES = [TINY, B06, B17, B8, B32, B70]

rates = st.one_of(st.none(), st.builds(Rates, st.floats(1e12, 2e15), st.floats(1e11, 8e12)))
gpus = st.builds(
    lambda gigabytes, share, **more: Gpu(
        index=0, uuid="", name="card", memory=gigabytes * GB, free=int(share * gigabytes * GB), **more
    ),
    gigabytes=st.integers(2, 288),
    share=st.floats(0.0, 1.0),
    kind=st.sampled_from(["cuda", "cuda", "cuda", "vulkan", "metal", "rocm"]),
    capability=st.sampled_from([(6, 1), (7, 0), (7, 5), (8, 0), (9, 0), (12, 0)]),
    rates=rates,
    part=st.sampled_from([None, None, None, 1]),
    mode=st.sampled_from(["shared", "shared", "exclusive"]),
)
cpus = st.builds(
    lambda count, pinned, memory: Cpu(tuple(range(count)) if pinned else (), count, memory * GB),
    st.integers(1, 64),
    st.booleans(),
    st.integers(1, 512),
)


@st.composite
def machines(draw: st.DrawFn) -> Machine:
    found = draw(st.lists(gpus, max_size=6))
    named = (replace(gpu, index=number, uuid=f"GPU-{number}") for number, gpu in enumerate(found))
    return Machine(draw(cpus), tuple(named))


software = st.builds(
    Software,
    vllm=st.sampled_from(["", "0.32.0"]),
    torch_cuda=st.booleans(),
    llama_backend=st.sampled_from(["cpu", "cuda", "vulkan", "metal"]),
    bitsandbytes=st.booleans(),
)
wishes = st.builds(
    Choices,
    sampler=st.sampled_from(["auto", "auto", "llama.cpp"]),
    without=st.sampled_from([(), ("base",), ("base", "memory")]),
)
bases = st.builds(
    lambda base, context, tasks, rank: replace(base, context=context, tasks=tasks, largest_rank=rank),
    st.sampled_from(BASES),
    st.sampled_from([0, 0, 512, 16384]),
    st.sampled_from([1, 32, 128]),
    st.sampled_from([1, 64, 256]),
)


def taken(plan: Placement, uuid: str) -> int:
    """The most that the plan's workers hold of a card at a time."""
    sampling = sum(assignment.place.memory for assignment in plan.samplers if uuid in assignment.place.gpus)
    training = plan.trainer.place.memory if uuid in plan.trainer.place.gpus else 0
    return sampling + training


@given(machines(), software, bases, wishes)
def test_a_plan_keeps_its_promises(machine: Machine, installed: Software, base: Wanted, choices: Choices) -> None:
    plan = place(machine, installed, base, choices)

    assert place(machine, installed, base, choices) == plan, "the same in, the same out"
    assert plan.samplers, "somebody samples"
    assert len({assignment.name for assignment in plan.samplers}) == len(plan.samplers)
    assert plan.samplers[0].name == "rollout"
    assert plan.reasons, "and says why"
    assert all(reason.endswith(".") for reason in plan.reasons)

    known = {gpu.uuid: gpu for gpu in machine.gpus}
    for uuid, gpu in known.items():
        assert taken(plan, uuid) <= usable(gpu) < gpu.free or taken(plan, uuid) == 0
    assignments: list[SamplerAssignment | TrainerAssignment] = [*plan.samplers, plan.trainer]
    used = [uuid for assignment in assignments for uuid in assignment.place.gpus]
    assert set(used) <= set(known), "no card that is not there"
    shared = [uuid for assignment in plan.samplers for uuid in assignment.place.gpus if uuid in plan.trainer.place.gpus]
    assert len(used) - len(shared) == len(set(used)), "one sampler on a card"
    assert bool(shared) == bool(plan.trainer.sharing)
    for uuid in shared:
        assert plan.trainer.sharing not in choices.without
        assert known[uuid].mode == "shared" or plan.trainer.sharing != "memory", "one process at a time"
    parts = [uuid for uuid in plan.trainer.place.gpus if known[uuid].part is not None]
    assert not parts or len(plan.trainer.place.gpus) == 1, "a process computes on one part"

    for assignment in plan.samplers:
        assert assignment.kind != "vllm" or installed.vllm
        assert assignment.kind != "torch" or not assignment.place.gpus
        assert all(known[uuid].capability >= (8, 0) for uuid in assignment.place.gpus if assignment.kind == "vllm")
    assert not plan.trainer.place.gpus or installed.torch_cuda
    assert plan.trainer.precision != "nf4" or installed.bitsandbytes
    cores = [core for assignment in assignments for core in assignment.place.cores]
    assert len(cores) == len(set(cores)) <= machine.cpu.count, "cores of their own"


@given(machines(), software, st.sampled_from(BASES), st.data())
def test_where_nothing_was_changed_by_names_they_are_kept(
    machine: Machine, installed: Software, base: Wanted, data: st.DataObject
) -> None:
    """Naming the very cards that were chosen anyway leaves the plan as it is."""
    plan = place(machine, installed, base)
    sampling = [uuid for assignment in plan.samplers for uuid in assignment.place.gpus] or ["cpu"]
    training = list(plan.trainer.place.gpus) or ["cpu"]
    again = place(machine, installed, base, Choices(rollout=sampling, training=training))
    assert (again.samplers, again.trainer) == (plan.samplers, plan.trainer)
