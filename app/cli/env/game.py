"""One episode in the terminal: an environment asks, and a person or a policy replies.

What an agent is told and what it says is printed, whoever plays it. Knows neither processes nor samplers.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

from marlaas.plugins.messages import Answer, Ask, Reply
from marlaas.plugins.rewards import DEFAULT_AGENT

from ... import output
from ...words.environments import transcript as transcript
from ...words.format import line, pad
from ..keyboard import BLOCK, Keyboard, Left
from .typed import CALL, COMMANDS, Typed, as_reply, command_of, reply_of

ConversationKey = tuple[str, int]
"""An agent, and which of its conversations: 0 is its own, the others are forks."""


class Game:
    """The state of one episode that somebody watches or plays."""

    def __init__(self, keyboard: Keyboard, mine: Callable[[str], bool]) -> None:
        """``mine`` tells the agents that the person plays, by name."""
        self.agents: list[str] = []
        """Those that were asked, in order."""
        self._keyboard = keyboard
        self._mine = mine
        self._turns: Counter[ConversationKey] = Counter()
        self._tools: dict[ConversationKey, tuple[dict[str, Any], ...]] = {}
        self._shown: ConversationKey = (DEFAULT_AGENT, 0)
        """The conversation whose lines were printed last."""

    def answering(self, policy: Answer | None) -> Answer:
        """Answer asks: the person for their agents, ``policy`` for the others; ``Left`` where the person leaves."""

        async def answer(ask: Ask) -> Reply:
            self._hear(ask)
            if policy is None or self._mine(ask.agent):
                return self._typed(ask)
            said = await policy(ask)
            self._print(_place(ask), transcript.reply(said))
            return said

        return answer

    def _hear(self, ask: Ask) -> None:
        place = _place(ask)
        if ask.agent not in self.agents:
            self.agents.append(ask.agent)
        rows = []
        if place not in self._tools:
            self._tools[place] = ask.tools
            rows = transcript.tools(ask.tools)
            if ask.fork is not None:
                self._tools[place] = self._tools.get((ask.fork.agent, ask.fork.branch), ())
                self._turns[place] = ask.fork.turns
                rows = [f"(goes on after reply {ask.fork.turns} of {_title((ask.fork.agent, ask.fork.branch))})"]
        self._print(place, [*rows, *(row for said in ask.messages for row in transcript.message(said))])

    def _print(self, place: ConversationKey, rows: list[str]) -> None:
        if place != self._shown:
            self._shown = place
            output.result(f"--- {_title(place)}")
        for row in rows:
            output.quote(row)

    def _typed(self, ask: Ask) -> Reply:
        place = _place(ask)
        typed = self._reply(ask)
        said = as_reply(typed, ask, self._turns[place])
        self._turns[place] += 1
        if typed.calls or said.text != typed.text:
            self._print(place, transcript.reply(said))
        return said

    def _reply(self, ask: Ask) -> Typed:
        """What the person says; commands that need no other episode are carried out meanwhile."""
        tools = self._tools[_place(ask)]
        prompt = f"{line(ask.agent, 20) if ask.agent != DEFAULT_AGENT else 'you'}> "
        while True:
            text = self._keyboard.text(pad(prompt, transcript.LABEL + 1))
            try:
                command = command_of(text)
                if not command:
                    return reply_of(text, tools)
            except ValueError as error:
                output.result(line(str(error)))
                continue
            if command == "help":
                show_help()
            elif command == "tools":
                for row in transcript.tools(tools) or ["This agent has no tools."]:
                    output.quote(row)
            else:
                raise Left(command)


def show_help() -> None:
    """What can be typed."""
    for name, purpose in COMMANDS.items():
        output.result(f"  {pad('/' + name, 10)} {purpose}")
    output.result(f"  {CALL} TOOL ARGUMENT=VALUE …, or {CALL} TOOL {{JSON}}: a tool call")
    output.result(f"  {BLOCK} begins and ends a reply of several lines; calls may be among them")
    output.result("  //text is a reply that begins with a slash; all else is the reply as it stands")


def _place(ask: Ask) -> ConversationKey:
    return ask.agent, ask.branch


def _title(place: ConversationKey) -> str:
    agent, branch = place
    return f"{line(agent, 60)}{f', fork {branch}' if branch else ''}"
