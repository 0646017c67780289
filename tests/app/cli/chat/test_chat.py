"""``chat`` as its users type it: a real sampler, messages from a pipe, answers in plain lines."""

from __future__ import annotations

import subprocess
import sys

import pytest

from marlaas.engine.home.paths import Home

from ...commanding import Commander
from ...filling import Filling
from ...filling_adapters import with_silent_adapter

ENTRY = [sys.executable, "-P", "-m", "marlaas.app.cli.main"]


@pytest.mark.processes
@pytest.mark.torch
def test_a_version_and_the_base_answer_beside_each_other(filling: Filling, home: Home) -> None:
    task = with_silent_adapter(filling, home)
    typed = '17+4=\n\n"""\ntwo\nlines\n"""\n/system Be kind.\n17+4=\n/help\n/quit\nnot read\n'
    command = [*ENTRY, "--home", str(home.root), "chat", f"{task}@last", "--beside", "base", "--temperature", "1"]
    done = subprocess.run(command, input=typed, capture_output=True, text=True, timeout=50)
    assert done.returncode == 0 and "Traceback" not in done.stderr
    assert "A sampler of its own takes about" in done.stderr and "are free." in done.stderr
    assert f"You talk with version 2 of task {task} (sums, last), and with the base without an adapter." in done.stderr
    blocks = [block.split("\n") for block in done.stdout.split("you> ")]
    first, again = (next(block for block in blocks[at:] if block[0] == "17+4=") for at in (0, 4))
    assert first[1].startswith("1@2>  ") and first[1].removeprefix("1@2>  ") == first[2].removeprefix("base> ")
    assert again[1] and "not read" not in done.stdout and "/new begins anew" in done.stdout


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (("7",), "There is no adapter '7'."),
        (("base", "--beside", "7@best"), "There is no adapter '7'."),
        (("base", "--temperature", "11"), "is no temperature from 0 to 10"),
        (("base", "--max-tokens", "0"), "is no number of tokens from 1 to"),
        (("base", "--top-p", "0"), "is no probability from 0.001 to 1"),
        (("base", "--min-p", "nan"), "is no probability from 0 to 1"),
        (("base", "--top-k", "-1"), "is no number of tokens from 0 (all) to"),
    ],
)
def test_what_cannot_be_talked_with_is_a_sentence(marlaas: Commander, words: tuple[str, ...], sentence: str) -> None:
    said = marlaas("chat", *words)
    assert said.code and sentence in said.err and not said.out


def test_a_base_that_does_not_fit_is_refused_at_once(marlaas: Commander, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("marlaas.engine.machine.lone_sampler.available_memory", lambda limit: 1_000_000)
    said = marlaas("chat", "base")
    assert said.code and "The base needs" in said.err and "0.0 GB are free on this machine" in said.err
