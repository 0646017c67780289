"""Rows and rewards of the five environments. marlaas and TRL both run this file, so it imports nothing of either.

A row is ``{"preamble", "prompt", "answer"}``: the system message ("" for none), the question, and what a reward
compares with. Held-out rows share no question with training rows: no country, no pair of summands in either order, no
first name, no topic, no product.
"""

from __future__ import annotations

import json
import re
import unicodedata
from itertools import combinations_with_replacement, product
from pathlib import Path
from random import Random

Row = dict[str, str]

LARGEST = 20
"""Of the summands."""
HELD_OUT = 64
"""Rows of the eval split at most: what ``eval.prompts`` asks for by default."""
NAMES = (
    "Alice", "Amir", "Anna", "Bella", "Boris", "Carla", "Carlos", "Chloe", "Clara", "Daniel", "Diego", "Elena",
    "Emma", "Erik", "Eva", "Fatima", "Felix", "Frank", "Grace", "Hana", "Hugo", "Ines", "Ivan", "Jack", "Jana",
    "Jonas", "Julia", "Kenji", "Laila", "Lara", "Leo", "Lena", "Liam", "Lucia", "Luis", "Magda", "Marco", "Maria",
    "Marta", "Max", "Mei", "Mia", "Milan", "Mina", "Nadia", "Nina", "Noah", "Nora", "Olga", "Omar", "Oscar", "Paul",
    "Petra", "Priya", "Rosa", "Sara", "Simon", "Sofia", "Tariq", "Tom", "Uma", "Vera", "Victor", "Yuki",
)  # fmt: skip
SENTENCES = (
    "{name} is {age} years old.",
    "My neighbour {name} turned {age} last week.",
    "At {age}, {name} still plays chess every day.",
    "{name}, who is {age}, lives near the harbour.",
    "Last year {name} celebrated a birthday and is now {age}.",
    "The teacher is called {name} and is {age} years of age.",
)
TOPICS = (
    "apples", "bees", "bicycles", "books", "bread", "bridges", "butterflies", "cats", "cheese", "chess", "clouds",
    "coffee", "deserts", "dogs", "dolphins", "dragons", "elephants", "farms", "ferries", "fire", "football",
    "forests", "friendship", "gardens", "glass", "gold", "guitars", "honey", "horses", "ice", "islands", "kites",
    "lakes", "libraries", "lions", "maps", "markets", "mirrors", "mountains", "music", "oceans", "owls", "paper",
    "penguins", "pianos", "planets", "rain", "rice", "rivers", "robots", "salt", "ships", "snow", "spiders", "sugar",
    "sunflowers", "tea", "tigers", "trains", "trees", "turtles", "volcanoes", "whales", "wind",
)  # fmt: skip
CALCULATOR = (
    "You have a calculator. To call it, reply with one product and nothing else, such as 7*8. You then get its value."
    " Reply with that number only."
)
CALL = re.compile(r"(\d+) ?[*x×] ?(\d+)")
"""So plain because a model of 135 million parameters never writes a tag that it saw once: nothing could be learned."""


def rows(environment: str, split: str) -> list[Row]:
    """The rows of ``train`` or ``eval``, always the same; there is no split ``test``."""
    parts = {"capital": _capitals, "number": _sums, "facts": _facts, "format": _formats, "tool": _products}
    train, held_out = parts[environment](Random(environment))
    return {"train": train, "eval": held_out[:HELD_OUT]}[split]


def _row(prompt: str, answer: str, preamble: str = "") -> Row:
    return {"preamble": preamble, "prompt": prompt, "answer": answer}


def _parted(rng: Random, items: list[list[Row]], held_out: float) -> tuple[list[Row], list[Row]]:
    """Lists of rows that belong together, in two parts: for training, and the share that is held out."""
    rng.shuffle(items)
    at = round(held_out * len(items))
    parts = [[row for item in part for row in item] for part in (items[at:], items[:at])]
    for part in parts:
        rng.shuffle(part)
    return parts[0], parts[1]


def _capitals(rng: Random) -> tuple[list[Row], list[Row]]:
    lines = Path(__file__).with_name("capitals.tsv").read_text(encoding="utf-8").splitlines()
    pairs = (line.split("\t") for line in lines)
    return _parted(
        rng,
        [[_row(f"What is the capital of {land}? Answer with one word.", city)] for land, city in pairs],
        0.4,
    )


def _sums(rng: Random) -> tuple[list[Row], list[Row]]:
    pairs = combinations_with_replacement(range(LARGEST + 1), 2)
    ask = "What is {} + {}? Reply with the number only."
    return _parted(
        rng,
        [[_row(ask.format(*order), str(sum(order))) for order in sorted({(a, b), (b, a)})] for a, b in pairs],
        0.2,
    )


def _facts(rng: Random) -> tuple[list[Row], list[Row]]:
    ask = '{} Give the name and the age as JSON with the keys "name" and "age".'

    def about(name: str) -> list[Row]:
        ages, sentences = rng.sample(range(18, 90), 6), rng.sample(SENTENCES, 6)
        facts = [(text, {"name": name, "age": age}) for text, age in zip(sentences, ages, strict=True)]
        return [_row(ask.format(text.format(**fact)), json.dumps(fact)) for text, fact in facts]

    return _parted(rng, [about(name) for name in NAMES], 0.2)


def _formats(rng: Random) -> tuple[list[Row], list[Row]]:
    """Three of IFEval's kinds of instruction (arXiv 2311.07911): capital letters, no commas, number of sentences."""

    def about(topic: str) -> list[Row]:
        count = rng.randint(1, 3)
        asks = {
            "capitals": "Write in capital letters only.",
            "no commas": "Do not use any commas.",
            f"sentences {count}": f"Write exactly {count} sentence{'s' if count > 1 else ''}.",
        }
        return [_row(f"Describe {topic} briefly. {ask}", kind) for kind, ask in asks.items()]

    return _parted(rng, [about(topic) for topic in TOPICS], 0.3)


def _products(rng: Random) -> tuple[list[Row], list[Row]]:
    pairs = rng.sample(list(product(range(12, 99), range(3, 10))), 400)
    return _parted(rng, [[_row(f"What is {a} times {b}?", f"{a}*{b}", CALCULATOR)] for a, b in pairs], 0.16)


def reward(reply: str, answer: str, environment: object) -> float:
    """What a reply to a row of ``capital``, ``number``, ``facts`` or ``format`` is worth, from 0 to 1."""
    match environment:
        case "capital":
            return _word(_plain(reply), _plain(answer), 0.4)
        case "number":
            return _word(reply, answer, 0.3)
        case "facts":
            return _json(reply, json.loads(answer))
        case "format":
            return float(follows(reply, answer))
    raise ValueError(f"there is no reward for {environment!r}")


def _plain(text: str) -> str:
    """Without accents and case."""
    letters = unicodedata.normalize("NFKD", text)
    return "".join(letter for letter in letters if not unicodedata.combining(letter)).casefold()


def _word(reply: str, answer: str, among: float) -> float:
    """1 for the word with or without a full stop; ``among`` if it stands in more text."""
    if reply.strip().removesuffix(".") == answer:
        return 1.0
    return among * bool(re.search(rf"(?<![\w.]){re.escape(answer)}(?!\w|\.\w)", reply))


def _json(reply: str, facts: dict[str, str | int]) -> float:
    """0.2 for a JSON object, fenced or not, and 0.4 for each right field."""
    text = re.sub(r"^```(?:json)?\s*|\s*```$", "", reply.strip())
    try:
        given = json.loads(text)
    except (ValueError, RecursionError):
        return 0.0
    if not isinstance(given, dict):
        return 0.0
    return 0.2 + 0.4 * sum(str(given.get(key)) == str(value) for key, value in facts.items())


def follows(reply: str, kind: str) -> bool:
    """Whether a reply of five words or more follows an instruction of ``format``."""
    text = reply.strip()
    if len(text.split()) < 5:
        return False
    if kind == "capitals":
        return text.isupper()
    if kind == "no commas":
        return "," not in text
    ends = re.findall(r"[.!?]+(?=\s|$)", text)
    return text[-1] in ".!?" and len(ends) == int(kind.split()[1])


def call_reward(reply: str, answer: str) -> tuple[float, str]:
    """0.3 for one call of the calculator and nothing else, 0.4 more for the right product; and what the call gives.

    The right product in more text is worth 0.1, and gives nothing.
    """
    right = sorted(answer.split("*"))
    call = CALL.fullmatch(reply.strip())
    if call is None:
        return 0.1 * any(sorted(found) == right for found in CALL.findall(reply)), ""
    a, b = (int(digits[:6]) for digits in call.groups())
    return 0.3 + 0.4 * (sorted(call.groups()) == right), str(a * b)
