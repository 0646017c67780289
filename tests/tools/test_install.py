"""What the set-up would install, by profile and by what is there; nothing is installed here."""

from __future__ import annotations

from pathlib import Path

import pytest

from tools import install

Steps = list[tuple[str, list[str], str]]


@pytest.fixture
def steps(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Steps:
    """What ran, in a new environment on a machine without compilers for cards."""
    ran: Steps = []
    monkeypatch.setattr(install, "step", lambda title, command, flags="": ran.append((title, command, flags)))
    monkeypatch.setattr(install, "VENV", tmp_path)
    monkeypatch.setattr(install, "PYTHON", tmp_path / "bin/python")
    monkeypatch.setattr(install, "runs", lambda program: True)
    monkeypatch.setattr("shutil.which", lambda name: None)
    monkeypatch.delenv("TORCH_INDEX", raising=False)
    return ran


def compiled(steps: Steps) -> tuple[str, list[str], str]:
    (found,) = [step for step in steps if "compiling" in step[0]]
    return found


def test_on_a_processor_versions_are_those_that_were_tested(steps: Steps, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TORCH_INDEX", "https://wheels.example")
    install.install("cpu", ["cpu", "dev"])
    assert all("-c" in command for _, command, _ in steps[1:])
    assert compiled(steps)[2] == "" and "--no-cache-dir" not in compiled(steps)[1]
    assert "https://wheels.example" in steps[1][1]
    assert f"{install.ROOT}[cpu,dev]" in steps[-1][1]


def test_for_cards_torch_comes_with_vllm_and_no_version_is_pinned(
    steps: Steps, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("shutil.which", lambda name: f"/usr/bin/{name}")
    install.install("gpu", ["cpu", "gpu"])
    assert not any("-c" in command for _, command, _ in steps)
    assert f"{install.ROOT}[gpu]" in steps[1][1]
    _, command, flags = compiled(steps)
    assert flags == "-DGGML_CUDA=on" and "--no-cache-dir" in command  # pip may have kept a build for the processor


def test_without_nvcc_llama_is_for_the_processor_and_people_are_told(steps: Steps) -> None:
    install.install("gpu", ["cpu", "gpu"])
    assert compiled(steps)[2] == ""
    words = " ".join(install.llama_words("gpu"))
    assert "since nvcc of NVIDIA's CUDA toolkit is missing" in words
    assert not any("nvcc" in sentence for sentence in install.llama_words("cpu"))


def test_a_build_that_is_there_is_not_made_again(steps: Steps, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("shutil.which", lambda name: f"/usr/bin/{name}")
    library = tmp_path / "lib/python3.11/site-packages/llama_cpp/lib/libggml-vulkan.so"
    library.parent.mkdir(parents=True)
    library.touch()
    install.install("vulkan", ["cpu"])
    assert not any("compiling" in title for title, _, _ in steps)


def test_one_that_does_not_run_is_made_for_the_same_card(steps: Steps, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shutil.which", lambda name: f"/usr/bin/{name}")
    monkeypatch.setattr(install, "runs", lambda program: False)
    install.install("vulkan", ["cpu"])
    assert [flags for title, _, flags in steps if "compiling" in title] == ["-DGGML_VULKAN=on"] * 2


@pytest.mark.parametrize(
    ("driver", "apple", "profile"), [(True, False, "gpu"), (False, True, "metal"), (False, False, "cpu")]
)
def test_the_profile_follows_what_is_there(
    driver: bool, apple: bool, profile: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(install, "has_nvidia_driver", lambda: driver)
    monkeypatch.setattr(install, "is_apple", lambda: apple)
    assert install.usual_profile() == profile


@pytest.mark.parametrize(("profile", "words"), [("tpu", "There is no profile 'tpu'"), ("vulkan", "glslc, the comp")])
def test_what_cannot_be_set_up_is_said_in_a_sentence(
    profile: str, words: str, steps: Steps, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PROFILE", profile)
    assert install.main([]) == 1 and steps == []
    assert words in capsys.readouterr().err
