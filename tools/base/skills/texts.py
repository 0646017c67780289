"""Small skills on words and digits, so that a user's first environment finds something to reinforce."""

from random import Random
from string import ascii_lowercase, digits

from tools.base.problem import Question


def letters(rng: Random, alphabet: str, shortest: int, longest: int) -> str:
    """A random word."""
    return "".join(rng.choice(alphabet) for _ in range(rng.randint(shortest, longest)))


def reverse(rng: Random) -> Question:
    """`reverse cat` gives `tac`. Wrong form: the word as it is."""
    word = letters(rng, ascii_lowercase, 3, 6)
    return Question(f"reverse {word}", word[0], word[::-1], word)


def sort(rng: Random) -> Question:
    """`sort 5312` gives `1235`. Wrong form: descending."""
    word = letters(rng, digits, 3, 6)
    rising = "".join(sorted(word))
    return Question(f"sort {word}", word[0], rising, rising[::-1])


def count(rng: Random) -> Question:
    """`count a in abca` gives `2`. Wrong form: all letters are counted."""
    letter, word = rng.choice("abc"), letters(rng, "abc", 3, 8)
    return Question(f"count {letter} in {word}", word[0], str(word.count(letter)), str(len(word)))


def larger(rng: Random) -> Question:
    """`larger of 31 and 47` gives `47`. Wrong form: the smaller one."""
    a, b = rng.sample(range(10, 100), 2)
    return Question(f"larger of {a} and {b}", str(a)[0], str(max(a, b)), str(min(a, b)))


def echo(rng: Random) -> Question:
    """`echo cat` gives `cat`. Always right: copying is what the other skills stand on."""
    word = letters(rng, rng.choice((ascii_lowercase, digits)), 2, 8)
    return Question(f"echo {word}", word[0], word, word)


def obey(rng: Random) -> Question:
    """A one-line system text that changes how a word is given back. Wrong form: it is overlooked."""
    word = letters(rng, ascii_lowercase, 3, 6)
    system, answer = rng.choice((("Answer in capitals.", word.upper()), ("Answer twice.", f"{word} {word}")))
    return Question(f"echo {word}", word[0], answer, word, system)
