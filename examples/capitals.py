"""Questions with known answers, graded by a function of its own. It runs apart from the episodes, under a time limit.

    user       The capital of France, in one word:
    assistant  Paris

`marlaas env replay TASK` grades what was said in a task anew with a changed file, and shows which rewards would change.
"""

from marlaas.plugins import Episode, Score, Transcript, env

CAPITALS = {
    "train": {
        "France": "Paris",
        "Italy": "Rome",
        "Japan": "Tokyo",
        "Kenya": "Nairobi",
        "Peru": "Lima",
        "Spain": "Madrid",
    },
    "eval": {"Austria": "Vienna", "Egypt": "Cairo"},
}


def rows(split: str) -> list[dict[str, str]]:
    """Countries with their capitals."""
    return [{"country": country, "capital": capital} for country, capital in CAPITALS[split].items()]


@env(data=rows, score_timeout=5)
async def capitals(ep: Episode, task: dict[str, str]) -> None:
    """Asks for the capital of a country."""
    await ep.ask(f"The capital of {task['country']}, in one word:")


@capitals.score
def grade(task: dict[str, str], transcript: Transcript) -> Score:
    """The capital and nothing else is worth 1, among other words 0.5."""
    said = transcript.text.strip()
    exact, named = said == task["capital"], task["capital"].lower() in said.lower()
    return Score(1.0 if exact else 0.5 * named, exact=exact, named=named)
