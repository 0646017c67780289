"""One episode at the screen, typed from a pipe: whose turn it is, what is shown, and how one leaves."""

from __future__ import annotations

import io

import pytest

from marlaas.app.cli.chat import Keyboard, Left
from marlaas.app.cli.env_play import Game
from marlaas.plugins.messages import Ask, Fork, Message, Reply, ToolCall

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


async def test_a_stop_text_cuts_what_is_typed_and_shows_it(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    answer = Game(typing(monkeypatch, "yes; no"), lambda agent: True).answering(None)
    assert (await answer(ask("agent", "?", stop=(";",)))).text == "yes"
    assert capsys.readouterr().out.endswith("reply      yes\n")


@pytest.mark.parametrize(
    ("lines", "wish"), [(["/again"], "again"), (["/next"], "next"), (["/quit"], "quit"), ([], "quit")]
)
async def test_one_leaves_by_command_or_with_the_end_of_the_input(
    monkeypatch: pytest.MonkeyPatch, lines: list[str], wish: str
) -> None:
    answer = Game(typing(monkeypatch, *lines), lambda agent: True).answering(None)
    with pytest.raises(Left) as left:
        await answer(ask("agent", "?"))
    assert left.value.wish == (wish if lines else "quit")


async def test_ctrl_c_is_a_wish_too(monkeypatch: pytest.MonkeyPatch) -> None:
    class Interrupted:
        def isatty(self) -> bool:
            return False

        def readline(self) -> str:
            raise KeyboardInterrupt

    monkeypatch.setattr("sys.stdin", Interrupted())
    with pytest.raises(Left) as left:
        await Game(Keyboard(), lambda agent: True).answering(None)(ask("agent", "?"))
    assert left.value.wish == "interrupt"
