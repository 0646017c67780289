"""What is wrong with a command line, in one sentence: argparse's words, and its list of all options, say it in many.

Loaded only where something is wrong.
"""

from __future__ import annotations

import argparse
import difflib
import re
from collections.abc import Collection, Mapping, Sequence

_SENTENCES = (
    (r"the following arguments are required: ([^,]+)", r"\1 is missing"),
    (r"the following arguments are required: (.+)", r"\1 are missing"),
    (r"one of the arguments (.+) is required", r"one of \1 is missing"),
    (r"argument (\S+): not allowed with argument (\S+)", r"\1 and \2 exclude each other"),
    (r"argument (\S+): expected (?:at least )?one argument", r"\1 needs a value"),
    (r"argument (\S+): expected (\d+) arguments", r"\1 needs \2 values"),
    (r"argument (\S+): ignored explicit argument (.+)", r"\1 takes no value, but has \2"),
    (r"argument (\S+): invalid int value: (.+)", r"\1 takes a whole number, not \2"),
    (r"argument (\S+): invalid float value: (.+)", r"\1 takes a number, not \2"),
    (r"ambiguous option: (\S+) could match (.+)", r"\1 may mean \2"),
    (r"argument [A-Z]\S*: (.+)", r"\1"),
    (r"argument (\S+): (.+)", r"\1: \2"),
)
"""What argparse says, and what we say."""


def sentence(message: str) -> str:
    """What argparse found wrong, as one sentence."""
    for pattern, words in _SENTENCES:
        if found := re.fullmatch(pattern, message, re.DOTALL):
            message = found.expand(words)
            break
    return _capital(message.rstrip(".")) + "."


def near_verb(said: str, verbs: Mapping[str, argparse.ArgumentParser]) -> str:
    """The verb that is meant by one that there is not: one of the same name in a family, else one that looks alike."""
    inner = [f"{name} {said}" for name, parser in verbs.items() if said in _verbs_of(parser)]
    near = inner[:1] or difflib.get_close_matches(said, verbs, n=1)
    return f"Did you mean {near[0]!r}?" if near else ""


def _verbs_of(parser: argparse.ArgumentParser) -> Collection[str]:
    families = (action.choices for action in parser._actions if isinstance(action, argparse._SubParsersAction))
    return [verb for choices in families for verb in choices]


def no_choice(action: argparse.Action, value: object) -> tuple[str, str]:
    """(what is wrong with a value that an option does not have, which is meant)."""
    choices = [str(choice) for choice in action.choices or ()]
    says = f"{name_of(action)} is one of {', '.join(choices)}, not {str(value)!r}."
    return says, _meant(str(value), choices)


def unknown(prog: str, actions: Sequence[argparse.Action], word: str, rest: Sequence[str]) -> tuple[str, str]:
    """(what is wrong with a word that a verb does not take, what is meant); ``actions``: what it takes; ``rest``: the
    words behind it."""
    if not word.startswith("-"):
        return f"{word!r} is one word too many for `{prog}`.", ""
    option, _, value = word.partition("=")
    value = value or next((one for one in rest[:1] if not one.startswith("-")), "")
    options = [name for action in actions for name in action.option_strings if name.startswith("--")]
    placed = {str(action.dest): action for action in actions if not action.option_strings and action.metavar}
    says = f"`{prog}` has no option {option!r}."
    if near := difflib.get_close_matches(option.lstrip("-"), placed, n=1, cutoff=0.8):
        return says, f"Write the {near[0]} without it: `{prog} {value or name_of(placed[near[0]])}`."
    return says, _meant(option, options)


def name_of(action: argparse.Action) -> str:
    """An option as one writes it, or the name of what has a place."""
    return max(action.option_strings, key=len, default="") or str(action.metavar or action.dest)


def _meant(said: str, known: Sequence[str]) -> str:
    near = difflib.get_close_matches(said, known, n=1)
    return f"Did you mean {near[0]!r}?" if near else ""


def _capital(text: str) -> str:
    return text if text.startswith("-") else text[:1].upper() + text[1:]
