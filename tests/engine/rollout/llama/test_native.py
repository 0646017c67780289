"""Loading llama.cpp, and what it says when something is wrong."""

import sys

import pytest

from marlaas.engine.errors import ConfigError
from marlaas.engine.rollout.llama import native


def test_a_missing_library_is_said_clearly(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "llama_cpp.llama_cpp", None)
    with pytest.raises(ConfigError, match=r"llama\.cpp could not be loaded: .*llama_cpp") as caught:
        native.llama.__wrapped__()
    assert "marlaas[cpu]" in caught.value.hint


def test_the_last_errors_are_kept_once_and_the_rest_is_silent(capfd: pytest.CaptureFixture[str]) -> None:
    llama = native.llama()
    native.last_errors()
    assert not llama.llama_model_load_from_file(b"/nowhere.gguf", llama.llama_model_default_params())
    text = native.last_errors()
    assert text.startswith(" (") and text.endswith(")") and "nowhere" in text
    assert native.last_errors() == ""
    assert capfd.readouterr().err == ""
