"""Rows, some of them held out: the plural of a noun.

    user       The plural of "box":
    assistant  boxes

A row is any value that JSON can hold. The function may as well read a file; for a JSONL file beside the plugin, called
`plurals.jsonl`, say `@env(data="plurals.jsonl")`: where its rows have no key `split`, a tenth of them is held out.
"""

from marlaas.plugins import Episode, Score, env

TRAIN = {"box": "boxes", "city": "cities", "leaf": "leaves", "mouse": "mice", "day": "days", "wish": "wishes"}
EVAL = {"fox": "foxes", "party": "parties", "knife": "knives"}


def rows(split: str) -> list[tuple[str, str]]:
    """The nouns of a split with their plurals."""
    return list((EVAL if split == "eval" else TRAIN).items())


@env(data=rows)
async def plurals(ep: Episode, task: tuple[str, str]) -> Score:
    """Pays for the plural, and a little for a word that only ends like it."""
    noun, plural = task
    said = (await ep.ask(f'The plural of "{noun}":', max_tokens=8)).text.strip()
    exact, ending = said == plural, said.endswith(plural[-2:])
    return Score(1.0 if exact else 0.2 * ending, exact=exact, ending=ending)
