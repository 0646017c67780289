"""env play: typed from a pipe and at a terminal, by a person, a base and versions."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import psutil
import pytest
from hypothesis import given, strategies as st

from marlaas.app.cli.chat import Keyboard, Left
from marlaas.app.cli.env import typed
from marlaas.app.cli.env_play import (
    OTHERS,
    ROOMY,
    Game,
    Players,
    call_of,
    find_players,
    player_of,
    reply_of,
)
from marlaas.app.cli.main import build_parser
from marlaas.engine.errors import AdapterError, ConfigError
from marlaas.engine.home.paths import Home
from marlaas.engine.queue.submission.taskfile import submission
from marlaas.engine.samplers.sampling import Truncation
from marlaas.engine.spec.automatic import as_number
from marlaas.engine.spec.task import NamedPolicySpec, SamplingSpec, TaskSpec
from marlaas.engine.store.store import Store
from marlaas.engine.store.submissions import submit
from marlaas.engine.store.versions import NewVersion
from marlaas.plugins.messages import Ask, Fork, Message, Reply, ToolCall

from ..commanding import Commander

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
        (("guess", "--policy", "7"), 1, "There is no adapter '7'."),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else "",
)
def test_what_cannot_be_played_is_a_sentence(
    marlaas: Commander, words: tuple[str, ...], code: int, sentence: str
) -> None:
    said = marlaas("env", "play", *words)
    assert said.code == code and sentence in said.err and not said.out


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


TOOL = {"function": {"name": "price", "parameters": {"properties": {"item": {"type": "string"}}}}}


def ask(agent: str, text: str, **more: object) -> Ask:
    return Ask(agent, (Message("user", text),), **more)  # type: ignore[arg-type]


def typing(monkeypatch: pytest.MonkeyPatch, *lines: str) -> Keyboard:
    monkeypatch.setattr("sys.stdin", io.StringIO("".join(f"{line}\n" for line in lines)))
    return Keyboard()


async def parrot(asked: Ask) -> Reply:
    return Reply(asked.messages[-1].content.upper(), "stop", 0)


async def test_a_person_answers_for_the_model(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    keyboard = typing(monkeypatch, "/tools", "/nonsense", '/call price item="blue ink"', '"""', "one", "two", '"""')
    answer = Game(keyboard, lambda agent: True).answering(None)
    first = await answer(ask("agent", "buy", tools=(TOOL,)))
    assert first == Reply("", "tool", 0, (ToolCall("price", {"item": "blue ink"}),))
    assert await answer(ask("agent", "and?")) == Reply("one\ntwo", "stop", 1)
    shown = capsys.readouterr().out.splitlines()
    assert shown[:3] == ["tool       price(item?: string)", "user       buy", "you>       /tools"]
    assert shown[3] == "tool       price(item?: string)"
    assert "no command /nonsense" in shown[5]
    assert shown[7:9] == ['call       price(item="blue ink")', "user       and?"]


async def test_a_person_and_a_policy_share_a_game(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    game = Game(typing(monkeypatch, "3"), lambda agent: agent == "first")
    answer = game.answering(parrot)
    assert (await answer(ask("first", "9 left"))).text == "3"
    assert (await answer(ask("second", "six left"))).text == "SIX LEFT"
    assert list(game.agents) == ["first", "second"]
    assert capsys.readouterr().out.splitlines() == [
        "--- first",
        "user       9 left",
        "first>     3",
        "--- second",
        "user       six left",
        "reply      SIX LEFT",
    ]


@pytest.mark.parametrize(("lines", "wish"), [(["/again"], "again"), ([], "quit")])
async def test_one_leaves_by_command_or_with_the_end_of_the_input(
    monkeypatch: pytest.MonkeyPatch, lines: list[str], wish: str
) -> None:
    answer = Game(typing(monkeypatch, *lines), lambda agent: True).answering(None)
    with pytest.raises(Left) as left:
        await answer(ask("agent", "?"))
    assert left.value.wish == (wish if lines else "quit")


ASK = Ask("agent", (Message("user", "?"),))
BUY = {
    "type": "function",
    "function": {
        "name": "buy",
        "parameters": {
            "type": "object",
            "properties": {
                "item": {"type": "string"},
                "count": {"type": "integer"},
                "gift": {"type": "boolean"},
                "colours": {"type": "array"},
                "size": {"enum": ["s", "1"]},
            },
        },
    },
}


@pytest.mark.parametrize(
    ("text", "arguments"),
    [
        ("/call buy", {}),
        ("/call buy item=ink count=3", {"item": "ink", "count": 3}),
        ('/call buy item="blue ink" gift=true', {"item": "blue ink", "gift": True}),
        ("/call buy 'colours=[\"red\"]'", {"colours": ["red"]}),
        ('/call buy {"item": "ink", "count": 3}', {"item": "ink", "count": 3}),
        ("/call buy count=NaN", {"count": "NaN"}),
    ],
)
def test_a_call_has_the_types_of_the_schema(text: str, arguments: dict[str, Any]) -> None:
    assert call_of(text, [BUY]) == ToolCall("buy", arguments)


def test_calls_stand_on_lines_of_their_own() -> None:
    reply = reply_of("Let me see.\n/call buy item=ink\n//sic\n/call buy item=pen", ASK, [BUY], 3)
    assert (reply.text, reply.finish, reply.turn) == ("Let me see.\n/sic", "tool", 3)
    assert [call.arguments["item"] for call in reply.tool_calls] == ["ink", "pen"]


def test_a_reply_ends_at_the_first_stop_text() -> None:
    reply = reply_of("a; b END c", replace(ASK, stop=("END", ";")), [])
    assert (reply.text, reply.finish) == ("a", "stop")


@given(st.text(alphabet=st.sampled_from("/cal buy={}[]\"'\\\n1t"), max_size=40))
def test_whatever_is_typed_is_a_reply_or_a_sentence(text: str) -> None:
    try:
        reply = reply_of(f"/call {text}", ASK, [BUY])
    except ValueError:
        return
    json.dumps([call.arguments for call in reply.tool_calls], allow_nan=False)


PARAMETERS = {"digits": "int", "rate": "float", "word": "str", "loud": "bool", "items": "json"}


@pytest.mark.parametrize("pair", ["digits", "items=[1", "items=NaN", "items=" + "[" * 9999])
def test_what_cannot_be_read_is_said_with_the_way_out(pair: str) -> None:
    with pytest.raises(ConfigError) as raised:
        typed([pair], PARAMETERS)
    assert "Write, for example" in raised.value.hint


def test_numbers_are_read_as_python_writes_them() -> None:
    pairs = ["digits=+03", "rate=.5", "word=007", "loud=TRUE"]
    assert typed(pairs, PARAMETERS) == {"digits": 3, "rate": 0.5, "word": "007", "loud": True}
    assert typed(["digits=1e5", "rate=x", "loud=1"], PARAMETERS) == {"digits": "1e5", "rate": "x", "loud": "1"}


@given(st.recursive(st.none() | st.booleans() | st.integers() | st.text(), st.lists, max_leaves=5))
def test_any_json_arrives_as_it_is(value: object) -> None:
    assert typed([f"items={json.dumps(value)}"], PARAMETERS) == {"items": value}


SHORT = SamplingSpec(max_tokens=8, max_episode_tokens=16)
DUEL = TaskSpec(
    "lab",
    "duel",
    "duel",
    policies={
        "player": NamedPolicySpec(),
        "old": NamedPolicySpec(frozen="player@0"),
        "past": NamedPolicySpec(pool="player"),
        "bare": NamedPolicySpec(frozen="base"),
        "guest": NamedPolicySpec(frozen="1@1"),
    },
    agents={"first": "player", "second": "old", "third": "past", "fourth": "bare", "fifth": "guest"},
    sampling=SHORT,
)

SOLO = TaskSpec("lab", "solo", "solo")


@pytest.fixture
def played(home: Home) -> Home:
    """Task 1 has one policy of two versions, task 2 five of which one is trained, task 3 two trained ones."""
    home.create()
    pair = replace(DUEL, name="pair", policies={"a": NamedPolicySpec(), "b": NamedPolicySpec()})
    specs = (SOLO, DUEL, replace(pair, agents={"first": "a", "second": "b"}))
    store = Store(home.database, "tiny")
    submit(home.database, [submission(spec) for spec in specs])
    for task, names in ((1, ["policy"]), (2, ["player"]), (3, ["a", "b"])):
        for name in names:
            policy = store.versions.policy(task, name, {})
            for number in range(3):
                version = NewVersion(number, f"task-{task}/{name}-v{number}", "c", f"{task}-{name}-{number}", 1)
                if number:
                    store.versions.commit_step(policy, version, [], 0.0, {}, {})
                else:
                    store.versions.commit_first(policy, version)
    store.close()
    return home


def players(home: Home, *words: str) -> Players:
    """The players whom these options of the verb name."""
    return find_players(home, build_parser(["env"]).parse_args(["env", "play", "duel", *words]))


def labels(found: Players) -> dict[str, str]:
    return {agent: player.side.label for agent, player in found.items()}


def test_one_policy_plays_whoever_there_is(played: Home) -> None:
    assert labels(players(played, "--policy", "1@1")) == {OTHERS: "1@1"}
    assert player_of(players(played, "--base"), "anybody").sampling == ROOMY


def test_several_play_as_in_training(played: Home) -> None:
    found = players(played, "--policy", "2")
    assert labels(found) == {
        "first": "2/player@2",
        "second": "base",
        "third": "2/player@2",
        "fourth": "base",
        "fifth": "1@1",
    }
    assert found["first"].sampling == SHORT
    with pytest.raises(ConfigError, match="Nobody plays the agent 'sixth'"):
        player_of(found, "sixth")


def test_each_agent_may_be_played_by_another_version(played: Home) -> None:
    others = ("--agent", "second", "3/b@1", "--agent", "fourth", "base")
    sampling = ("--temperature", "0", "--max-tokens", "99", "--top-k", "5")
    found = players(played, "--policy", "pair", "--as", "first", *others, *sampling)
    assert labels(found) == {"second": "3/b@1", "fourth": "base"}
    said = {(p.sampling.temperature, p.sampling.max_tokens, p.truncation) for p in found.values()}
    assert said == {(0.0, 99, Truncation(top_k=5))}
    assert as_number(found["fourth"].sampling.max_episode_tokens) >= 99


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ("--policy 7", "There is no adapter '7'"),
        ("--policy 3/b@9", "no version '9'"),
        ("--agent first 3", "has the policies"),
    ],
)
def test_what_means_nobody_is_a_sentence(played: Home, words: str, says: str) -> None:
    with pytest.raises((AdapterError, ConfigError), match=says):
        players(played, *words.split())


async def test_a_fork_has_the_tools_and_the_turns_of_where_it_left(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    answer = Game(typing(monkeypatch, "a", "b", "/tools", "c"), lambda agent: True).answering(None)
    await answer(ask("agent", "1", tools=(TOOL,)))
    await answer(ask("agent", "2"))
    forked = await answer(ask("agent", "2b", branch=1, fork=Fork("agent", 0, 1)))
    assert (forked.text, forked.turn) == ("c", 1)
    shown = capsys.readouterr().out
    assert "--- agent, fork 1\n(goes on after reply 1 of agent)\nuser       2b" in shown
    assert shown.count("price(item?: string)") == 2
