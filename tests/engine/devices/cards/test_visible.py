"""A worker sees the cards that it was given, and no others."""

from marlaas.engine.devices.machine import Gpu, Kind
from marlaas.engine.devices.usable import environment, llama_devices


def gpu(uuid: str, kind: Kind) -> Gpu:
    return Gpu(7, uuid, "card", kind, 1, 1)


def test_cards_are_named_by_what_stays_the_same() -> None:
    both = [gpu("GPU-b", "cuda"), gpu("GPU-a", "cuda")]
    assert environment(both) == {"CUDA_VISIBLE_DEVICES": "GPU-b,GPU-a", "HIP_VISIBLE_DEVICES": ""}
    assert llama_devices(both) == ("CUDA0", "CUDA1")


def test_a_worker_on_the_processor_sees_none() -> None:
    assert environment([]) == {"CUDA_VISIBLE_DEVICES": "", "HIP_VISIBLE_DEVICES": ""} and llama_devices([]) == ()


def test_each_kind_is_counted_for_itself_and_others_go_by_name() -> None:
    mixed = [gpu("GPU-a", "cuda"), gpu("0", "rocm"), gpu("Vulkan1", "vulkan"), gpu("MTL0", "metal")]
    assert llama_devices(mixed) == ("CUDA0", "ROCm0", "Vulkan1", "MTL0")
    assert environment(mixed)["HIP_VISIBLE_DEVICES"] == "0"
