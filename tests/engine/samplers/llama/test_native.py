"""Loading llama.cpp, and what it says when something is wrong."""

import sys

import pytest

from marlaas.engine.devices.software import LlamaBuild
from marlaas.engine.errors import ConfigError
from marlaas.engine.samplers.llama import native


def test_a_missing_library_is_said_clearly(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "llama_cpp.llama_cpp", None)
    with pytest.raises(ConfigError, match=r"llama\.cpp could not be loaded: .*llama_cpp") as caught:
        native.llama.__wrapped__()
    assert "marlaas[cpu]" in caught.value.hint


@pytest.mark.parametrize(
    ("build", "words"),
    [
        (
            LlamaBuild("compiling", 130.0, log="/x/log"),
            "llama.cpp could not be loaded: it is still being compiled, 2 min",
        ),
        (LlamaBuild("failed", 1.0, 9.0, "no compiler"), "it could not be compiled: no compiler"),
    ],
)
def test_one_that_the_set_up_still_owes_is_said_so(
    build: LlamaBuild, words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "llama_cpp.llama_cpp", None)
    monkeypatch.setattr(native, "llama_build", lambda: build)
    with pytest.raises(ConfigError) as caught:
        native.llama.__wrapped__()
    assert words in caught.value.message and "marlaas[cpu]" not in caught.value.hint


def test_the_last_errors_are_kept_once_and_the_rest_is_silent(capfd: pytest.CaptureFixture[str]) -> None:
    llama = native.llama()
    native.last_errors()
    assert not llama.llama_model_load_from_file(b"/nowhere.gguf", llama.llama_model_default_params())
    text = native.last_errors()
    assert text.startswith(" (") and text.endswith(")") and "nowhere" in text
    assert native.last_errors() == ""
    assert capfd.readouterr().err == ""
