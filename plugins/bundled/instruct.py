"""Three short tasks for small instruct models, as `marlaas demo --real` trains them: a word, a number, a JSON object.

    user       What is the capital of France? Answer with one word.
    assistant  Paris

An answer alone earns 1. In more text it earns a part of that, so that a model that chats has something to climb.
"""

import json
import re

from marlaas.plugins import Episode, env

CAPITALS = """
Australia Canberra|Austria Vienna|Belgium Brussels|Brazil Brasilia|Bulgaria Sofia|Canada Ottawa
Chile Santiago|China Beijing|Colombia Bogota|Croatia Zagreb|Cuba Havana|Denmark Copenhagen|Ecuador Quito|Egypt Cairo
Estonia Tallinn|Finland Helsinki|France Paris|Germany Berlin|Ghana Accra|Greece Athens
Hungary Budapest|Iceland Reykjavik|Indonesia Jakarta|Iran Tehran|Iraq Baghdad|Ireland Dublin
Italy Rome|Jamaica Kingston|Japan Tokyo|Jordan Amman|Kenya Nairobi|Latvia Riga|Lebanon Beirut|Libya Tripoli
Lithuania Vilnius
Morocco Rabat|Nepal Kathmandu|Nigeria Abuja|Norway Oslo|Pakistan Islamabad
Peru Lima|Philippines Manila|Poland Warsaw|Portugal Lisbon|Romania Bucharest|Russia Moscow|Senegal Dakar|Serbia Belgrade
Spain Madrid|Sudan Khartoum|Sweden Stockholm|Switzerland Bern
Syria Damascus|Thailand Bangkok|Tunisia Tunis|Turkey Ankara
Ukraine Kyiv|Uruguay Montevideo|Venezuela Caracas|Vietnam Hanoi
"""
NAMES = (
    "Alice Boris Carla Diego Elena Felix Grace Hugo Ines Jonas Kenji Laila Marta Noah Olga Petra Rosa Simon Tariq Vera"
)
SENTENCES = (
    "{name} is {age} years old.",
    "My neighbour {name} turned {age} last week.",
    "At {age}, {name} still plays chess every day.",
    "{name}, who is {age}, lives near the harbour.",
)


def countries(split: str) -> list[dict[str, str]]:
    """Every third country is measured on, the others are trained on."""
    pairs = [line.split(" ", 1) for line in re.split(r"[|\n]", CAPITALS.strip())]
    held_out = split != "train"
    return [{"name": a, "capital": b} for number, (a, b) in enumerate(pairs) if (number % 3 == 0) == held_out]


def worth(reply: str, answer: str, among: float) -> float:
    """1 for the answer, with or without a full stop; `among` where it stands in more text."""
    if reply.strip().removesuffix(".").casefold() == answer.casefold():
        return 1.0
    return among * bool(re.search(rf"\b{re.escape(answer)}\b", reply, re.IGNORECASE))


@env(data=countries)
async def capitals(ep: Episode, task: dict[str, str]) -> float:
    """Names a capital: 1 for the name alone, 0.4 in more text."""
    reply = await ep.ask(f"What is the capital of {task['name']}? Answer with one word.")
    return worth(reply.text, task["capital"], 0.4)


@env
async def sums(ep: Episode) -> float:
    """Adds two numbers up to 20: 1 for the sum alone, 0.3 in more text."""
    a, b = ep.rng.randint(0, 20), ep.rng.randint(0, 20)
    reply = await ep.ask(f"What is {a} + {b}? Reply with the number only.")
    return worth(reply.text, str(a + b), 0.3)


@env
async def people(ep: Episode) -> float:
    """Gives a name and an age as JSON: 0.2 for an object, 0.4 for each right field."""
    facts = {"name": ep.rng.choice(NAMES.split()), "age": ep.rng.randint(18, 89)}
    text = ep.rng.choice(SENTENCES).format(**facts)
    reply = await ep.ask(f'Give the name and the age as JSON with the keys "name" and "age". {text}')
    try:
        given = json.loads(re.sub(r"^```(?:json)?\s*|\s*```$", "", reply.text.strip()))
    except (ValueError, RecursionError):
        return 0.0
    if not isinstance(given, dict):
        return 0.0
    return 0.2 + 0.4 * sum(str(given.get(key)) == str(value) for key, value in facts.items())
