"""What the set-up would install, by profile and by what is there; nothing is installed here."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest

from tools import install

Steps = list[tuple[str, list[str], str]]


@pytest.fixture
def steps(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Steps:
    """What ran, in a new environment on a machine without compilers for cards, with a PyTorch for processors."""
    ran: Steps = []

    def step(title: str, command: list[str], flags: str = "") -> None:
        ran.append((title, command, flags))
        if "wheel" in command:
            out = Path(command[command.index("-w") + 1])
            out.mkdir()
            (out / "llama.whl").write_text(" ".join(command))

    monkeypatch.setattr(install, "step", step)
    monkeypatch.setattr(install, "VENV", tmp_path)
    monkeypatch.setattr(install, "PYTHON", tmp_path / "bin/python")
    monkeypatch.setattr(install, "runs", lambda program: program != install.NEEDS_CUDA)
    monkeypatch.setattr("shutil.which", lambda name: None)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    for name in ("TORCH_INDEX", "CMAKE_ARGS"):
        monkeypatch.delenv(name, raising=False)
    return ran


@pytest.fixture
def processor(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Puts the disk into another machine."""

    def put(name: str) -> None:
        monkeypatch.setattr(install, "instruction_sets", lambda: name)

    return put


def compiled(steps: Steps) -> list[str]:
    """The flags of each time that llama.cpp was compiled."""
    return [flags for title, _, flags in steps if title.startswith("compiling")]


def command(steps: Steps, title: str) -> str:
    (found,) = [" ".join(words) for said, words, _ in steps if said == title]
    return found


def test_on_a_processor_all_but_pytorch_and_marlaas_has_hashes(steps: Steps, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TORCH_INDEX", "https://wheels.example")
    install.install("cpu", ["dev"])
    for title, words, _ in steps:
        if "pip" in words and "--no-index" not in words:
            assert ("--require-hashes" in words) != (title in ("installing PyTorch", "installing marlaas"))
            assert "--no-deps" in words
    lists = re.findall(r"hashes/(\w+)\.txt", command(steps, "installing what marlaas needs"))
    assert lists == ["install", "serve", "dev"]
    assert "https://wheels.example" in command(steps, "installing PyTorch") and "cpu.txt" in command(
        steps, "installing PyTorch"
    )
    assert "--no-build-isolation" in command(steps, "installing marlaas")
    assert compiled(steps) == [""]


@pytest.mark.parametrize("index", ["", "https://wheels.example"])
def test_what_pytorch_needs_for_cards_comes_from_its_index(
    index: str, steps: Steps, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TORCH_INDEX", index)
    monkeypatch.setattr(install, "runs", lambda program: True)
    install.install("cpu", [])
    words = command(steps, "installing what PyTorch needs")
    assert (index in words and "--no-deps" not in words) if index else "--require-hashes" in words and "cuda" in words


def test_for_cards_torch_comes_with_vllm_and_nothing_is_pinned(steps: Steps, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shutil.which", lambda name: f"/usr/bin/{name}")
    install.install("gpu", [])
    assert not any("-c" in words for _, words, _ in steps)
    assert f"{install.ROOT}[gpu]" in command(steps, "installing PyTorch and vLLM")
    assert f"{install.ROOT}[cpu,gpu]" in command(steps, "installing marlaas")
    assert compiled(steps) == ["-DGGML_CUDA=on"]


def test_without_nvcc_llama_is_for_processors_and_people_know(steps: Steps) -> None:
    install.install("gpu", [])
    assert compiled(steps) == [""]
    words = " ".join(install.llama_words("gpu"))
    assert "since nvcc of NVIDIA's CUDA toolkit is missing" in words
    assert not any("nvcc" in sentence for sentence in install.llama_words("cpu"))


def test_llama_is_compiled_once_for_a_processor_card_and_wish(
    steps: Steps, processor: Callable[[str], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    processor("with AVX-512")
    install.install("cpu", [])
    install.install("cpu", ["dev"])
    assert compiled(steps) == [""], "it is there"
    install.held().unlink()
    install.install("cpu", [])
    assert compiled(steps) == [""], "another checkout of the same user"
    assert "llama.whl" in command(steps, "installing the llama.cpp that was compiled for this processor")
    processor("with AVX2")
    install.install("cpu", [])
    assert compiled(steps) == ["", ""]
    monkeypatch.setattr("shutil.which", lambda name: f"/usr/bin/{name}")
    install.install("vulkan", [])
    assert compiled(steps)[2:] == ["-DGGML_VULKAN=on"]
    monkeypatch.setenv("CMAKE_ARGS", "-DGGML_BLAS=on")
    install.install("vulkan", [])
    assert compiled(steps)[3:] == ["-DGGML_VULKAN=on"]


def test_the_first_target_mends_a_checkout_of_another_machine(
    steps: Steps, processor: Callable[[str], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also after the other machine made another target, and on the way back."""
    monkeypatch.setenv("PROFILE", "cpu")
    processor("with AVX-512")
    assert install.main([]) == install.main(["dev"]) == 0
    steps.clear()
    assert install.main([]) == 0 and steps == []
    processor("with AVX2")
    assert install.main(["dev"]) == 0 and compiled(steps) == [""]
    assert install.held_build()[1] == "with AVX2"
    steps.clear()
    assert install.main(["dev"]) == 0 and steps == []
    processor("with AVX-512")
    assert install.main([]) == 0 and compiled(steps) == [] and steps
    assert install.held_build()[1] == "with AVX-512"


def test_one_that_does_not_run_is_made_for_the_same_card(steps: Steps, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shutil.which", lambda name: f"/usr/bin/{name}")
    install.install("vulkan", [])
    monkeypatch.setattr(install, "runs", lambda program: False)
    install.install("vulkan", [])
    assert compiled(steps) == ["-DGGML_VULKAN=on"] * 2


def test_a_set_up_that_stops_leaves_no_word_about_llama(steps: Steps, monkeypatch: pytest.MonkeyPatch) -> None:
    def stop(key: str, flags: str) -> Path:
        raise install.StepFailed("compiling")

    monkeypatch.setattr(install, "build_llama", stop)
    with pytest.raises(install.StepFailed):
        install.install("cpu", [])
    assert install.held_build() == ("", "")


def test_a_hash_that_is_wrong_is_said_in_a_sentence(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(install, "VENV", tmp_path / ".venv")
    install.log_path().write_text(
        f"{install.HEAD}before\nERROR: something else\n{install.HEAD}now\n"
        "ERROR: THESE PACKAGES DO NOT MATCH THE HASHES FROM THE REQUIREMENTS FILE. If you have updated the package.\n"
        "    click==8.5.1 from https://wheels.example/click.whl (from -r install.txt (line 5)):\n"
        "        Expected sha256 aaa\n             Got        bbb\n"
    )
    said = "the file that came for click==8.5.1 is not the one that was tested: it has none of its hashes."
    assert install.last_complaint() == said


@pytest.mark.parametrize(
    ("driver", "apple", "profile"), [(True, False, "gpu"), (False, True, "metal"), (False, False, "cpu")]
)
def test_the_profile_follows_what_is_there(
    driver: bool, apple: bool, profile: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(install, "has_nvidia_driver", lambda: driver)
    monkeypatch.setattr(install, "is_apple", lambda: apple)
    assert install.usual_profile() == profile


@pytest.mark.parametrize(
    ("profile", "extras", "words"),
    [
        ("tpu", [], "There is no profile 'tpu'"),
        ("vulkan", [], "glslc, the comp"),
        ("cpu", ["no"], "There is no extra 'no'"),
    ],
)
def test_what_cannot_be_set_up_is_said_in_a_sentence(
    profile: str,
    extras: list[str],
    words: str,
    steps: Steps,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("PROFILE", profile)
    assert install.main(extras) == 1 and steps == []
    assert words in capsys.readouterr().err
