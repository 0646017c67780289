"""``env play`` as its users type it: real processes, replies from a pipe, and nothing left behind."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import psutil
import pytest

from marlaas.engine.home.paths import Home

from ...commanding import Commander

ENTRY = [sys.executable, "-P", "-m", "marlaas.app.cli.main"]

SHOP = '''
from marlaas.plugins import Invalid, Score, env


@env
async def shop(ep, price: int = 3):
    def buy(item: str, count: int = 1):
        """Buy something."""
        if item == "bomb":
            raise Invalid("no weapons", reward=-1.0)
        return price * count

    print("open")
    reply = await ep.agent("agent", tools=[buy]).act("Buy ink.\\n\\x1b[31mNow!")
    ep.log(said=reply.text)
    return Score(float(reply.text == "done"), paid=price) if reply.text else 1 / 0
'''


@dataclass(frozen=True)
class Played:
    """How a session ended."""

    code: int
    out: str
    err: str


def play(home: Home, typed: str, *words: str) -> Played:
    """Play from a pipe, as a script would."""
    command = [*ENTRY, "--home", str(home.root), "env", "play", *words]
    done = subprocess.run(command, input=typed, capture_output=True, text=True, timeout=50)
    assert "Traceback" not in done.stderr
    return Played(done.returncode, done.stdout, done.stderr)


@pytest.mark.processes
def test_a_bundled_environment_is_played_from_a_pipe(home: Home) -> None:
    played = play(home, "8\n/again\nx\nnext\n", "guess", "--config", "width=3", "turns=1", "--split", "eval")
    assert played.code == 0 and not played.err
    first, again, following = played.out.split("guess/guess ")[1:]
    assert "eval instance 0, seed 0; width = 3, turns = 1, highest = 999\n" in first
    assert (
        "\nuser       Guess my number from " in first and "\nyou>       8\n" in first and "logged     turns 1" in first
    )
    assert first.split("user")[1].split("\n")[0] == again.split("user")[1].split("\n")[0]
    assert "invalid    not a number\nreward     0\n" in again
    assert "eval instance 1" in following and "The episode" not in following, "the input ended in the middle of it"
    assert not home.root.exists(), "playing leaves nothing behind"


@pytest.mark.processes
def test_a_file_is_played_with_tools_prints_and_errors(home: Home, tmp_path: Path) -> None:
    path = tmp_path / "shop.py"
    path.write_text(SHOP)
    played = play(
        home, "/call buy item=ink count=2\ndone\nagain\n/call buy item=bomb\n\n\n", str(path), "--config", "price=4"
    )
    assert played.code == 1, "the last episode failed"
    assert (
        "tool       buy(item: string, count?: integer)  Buy something.\nuser       Buy ink.\n           Now!"
        in played.out
    )
    assert "result     buy: 8\n" in played.out and "printed    open\n" in played.out
    assert played.out.count("at load    open\n") == 1 and played.out.count("printed    open\n") == 3, "each stands once"
    assert "reward     1\nparts      paid 4\nlogged     said done" in played.out
    assert "invalid    no weapons\nreward     -1\n" in played.out
    error = "error      shop.py, line 16: ZeroDivisionError: division by zero"
    trace = '           Traceback (most recent call last):\n             File "shop.py", line 16, in shop\n'
    assert f"{error}\n{trace}" in played.out, "nothing of marlaas's own stands before the author's line"
    assert "\x1b" not in played.out


@pytest.mark.processes
@pytest.mark.parametrize(
    ("words", "code", "sentence"),
    [
        (("guss",), 2, "Did you mean 'guess/guess'?"),
        (("guess", "--config", "width=many"), 2, "'width' of guess must be a whole number"),
        (("guess", "--config", "wide=1"), 2, "Did you mean 'width'?"),
        (("./nowhere.py",), 2, "There is no file or folder"),
        (("guess", "--policy", "7"), 1, "There is no adapter '7'."),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else "",
)
def test_what_cannot_be_played_is_a_sentence(
    marlaas: Commander, words: tuple[str, ...], code: int, sentence: str
) -> None:
    said = marlaas("env", "play", *words)
    assert said.code == code and sentence in said.err and not said.out


def test_playing_one_agent_needs_somebody_for_the_others(marlaas: Commander) -> None:
    said = marlaas("env", "play", "guess", "--as", "first")
    assert said.code == 2 and "--base" in said.err


@pytest.mark.slow
@pytest.mark.processes
def test_the_base_plays_until_ctrl_c_ends_everything(home: Home, tmp_path: Path) -> None:
    (tmp_path / "duo.py").write_text(
        "from marlaas.plugins import env\n\n\n@env\nasync def duo(ep):\n"
        '    mine = await ep.agent("mine").ask("Say a number.")\n'
        '    other = await ep.agent("other").ask(mine.text + "+1=", max_tokens=8)\n'
        '    return {"mine": 1.0, "other": float(other.text != "")}\n'
    )
    command = [*ENTRY, "--home", str(home.root), "env", "play", str(tmp_path / "duo.py"), "--base", "--as", "mine"]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe, text=True) as process:
        assert process.stdin and process.stdout and process.stderr
        process.stdin.write("41\n")
        process.stdin.flush()
        shown = ""
        while "next, again or quit" not in shown:
            byte = process.stdout.read(1)
            assert byte, process.stderr.read()
            shown += byte
        children = psutil.Process(process.pid).children(recursive=True)
        assert len(children) == 2
        process.send_signal(2)
        assert process.wait() == 130
        assert "Interrupted" in process.stderr.read()
    _, alive = psutil.wait_procs(children, timeout=50)
    assert not alive
    assert "mine>      41\n--- other\nuser       41+1=\nreply      " in shown
    assert "reward     mine 1, other " in shown
    assert os.listdir(home.plugins) == []
