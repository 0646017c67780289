"""What the set-up would install, by profile and by what is there; nothing is installed here."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest

from tools import install, llama, steps

from .conftest import Steps, command, compiled


def test_on_a_processor_all_but_pytorch_and_marlaas_has_hashes(ran: Steps, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TORCH_INDEX", "https://wheels.example")
    install.install("cpu", ["dev"])
    for title, words, _ in ran:
        if "pip" in words and "--no-index" not in words:
            assert ("--require-hashes" in words) != (title in ("installing PyTorch", "installing marlaas"))
            assert "--no-deps" in words
    lists = re.findall(r"hashes/(\w+)\.txt", command(ran, "installing what marlaas needs"))
    assert lists == ["install", "serve", "api", "dev"]
    assert "https://wheels.example" in command(ran, "installing PyTorch")
    assert "cpu.txt" in command(ran, "installing PyTorch")
    assert "--no-build-isolation" in command(ran, "installing marlaas")
    assert compiled(ran) == [""]


@pytest.mark.parametrize("index", ["", "https://wheels.example"])
def test_what_pytorch_needs_for_cards_comes_from_its_index(
    index: str, ran: Steps, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TORCH_INDEX", index)
    monkeypatch.setattr(steps, "runs", lambda program: True)
    install.install("cpu", [])
    words = command(ran, "installing what PyTorch needs")
    assert (index in words and "--no-deps" not in words) if index else "--require-hashes" in words and "cuda" in words


def test_for_cards_torch_comes_with_vllm_and_nothing_is_pinned(ran: Steps, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shutil.which", lambda name: f"/usr/bin/{name}")
    install.install("gpu", ["dev"])
    assert not any("-c" in words for _, words, _ in ran)
    assert f"{steps.ROOT}[gpu,dev]" in command(ran, "installing PyTorch and vLLM")
    assert compiled(ran) == ["-DGGML_CUDA=on"]
    assert [title for title, _, _ in ran][-1] == "installing what llama.cpp needs"


def test_without_nvcc_llama_is_for_processors_and_people_know(ran: Steps) -> None:
    install.install("gpu", [])
    assert compiled(ran) == [""]
    words = " ".join(install.llama_words("gpu"))
    assert "since nvcc of NVIDIA's CUDA toolkit is missing" in words
    assert not any("nvcc" in sentence for sentence in install.llama_words("cpu"))


def test_the_demo_has_llama_in_the_background(ran: Steps, monkeypatch: pytest.MonkeyPatch) -> None:
    """Everything else is there when the set-up ends, and the stamp says so."""
    begun: list[str] = []
    monkeypatch.setattr(llama, "_start", begun.append)
    monkeypatch.setenv("PROFILE", "cpu")
    assert install.main([install.BEHIND]) == 0
    assert begun == ["cpu"] and compiled(ran) == [] and install.stamped("cpu", [])
    assert [title for title, _, _ in ran][-1] == "installing marlaas"
    assert all("--no-compile" in words for _, words, _ in ran if "install" in words)
    ran.clear()
    assert install.main([]) == 0 and compiled(ran) == [""], "others wait for it, or do it themselves"
    assert install.main([install.BEHIND]) == 0 and begun == ["cpu"]


def test_the_demo_takes_a_kept_llama_at_once(ran: Steps, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(llama, "_start", lambda profile: pytest.fail("there is one"))
    monkeypatch.setenv("PROFILE", "cpu")
    install.install("cpu", [])
    llama.held().unlink()
    ran.clear()
    assert install.main([install.BEHIND]) == 0
    assert [title for title, _, _ in ran] == ["installing the llama.cpp that was compiled for this processor"]


def test_the_first_target_mends_a_checkout_of_another_machine(
    ran: Steps, processor: Callable[[str], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also after the other machine made another target, and on the way back."""
    monkeypatch.setenv("PROFILE", "cpu")
    processor("with AVX-512")
    assert install.main([]) == install.main(["dev"]) == 0
    ran.clear()
    assert install.main([]) == 0 and ran == []
    processor("with AVX2")
    assert install.main(["dev"]) == 0 and compiled(ran) == [""]
    assert llama.held_build()[1] == "with AVX2"
    ran.clear()
    assert install.main(["dev"]) == 0 and ran == []
    processor("with AVX-512")
    assert install.main([]) == 0 and compiled(ran) == [] and ran
    assert llama.held_build()[1] == "with AVX-512"


def test_a_hash_that_is_wrong_is_said_in_a_sentence(ran: Steps) -> None:
    steps.LOG.write_text(
        f"{steps.HEAD}before\nERROR: something else\n{steps.HEAD}now\n"
        "ERROR: THESE PACKAGES DO NOT MATCH THE HASHES FROM THE REQUIREMENTS FILE. If you have updated the package.\n"
        "    click==8.5.1 from https://wheels.example/click.whl (from -r install.txt (line 5)):\n"
        "        Expected sha256 aaa\n             Got        bbb\n"
    )
    said = "the file that came for click==8.5.1 is not the one that was tested: it has none of its hashes."
    assert steps.last_complaint() == said


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
    ran: Steps,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("PROFILE", profile)
    assert install.main(extras) == 1 and ran == []
    assert words in capsys.readouterr().err


def test_a_step_that_fails_ends_the_set_up(
    ran: Steps, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def stop(*_: object) -> Path:
        raise steps.StepFailed("compiling llama.cpp for this processor")

    monkeypatch.setattr(llama, "build_llama", stop)
    monkeypatch.setenv("PROFILE", "cpu")
    assert install.main(["dev"]) == 1
    said = capsys.readouterr().err
    assert said.startswith("Set-up stopped while compiling llama.cpp for this processor: no reason was given.")
    assert str(steps.LOG) in said and llama.held_build() == ("", "")
    assert install.main(["dev"]) == 1, "the next one tries again"
