"""Code: the model writes a program, and tests judge it in a throw-away process with limits.

Never run what a model wrote in the environment itself: it is paid for odd ideas. The verdict comes from comparing what
the child printed, never from a file that it could write.
"""

from collections.abc import Callable

from marlaas.plugins import Episode, Score, env

TASKS: dict[str, Callable[[list[int]], int]] = {"the largest": max, "the smallest": min, "the sum": sum}


@env(timeout=30)
async def my_env(ep: Episode, tests: int = 3) -> Score:
    """Writes Python that reads numbers and prints an answer."""
    what, limit = ep.rng.choice(sorted(TASKS)), ep.rng.randint(10, 999)
    reply = await ep.ask(
        "Write a Python program that reads whole numbers from one line of standard input and prints"
        f" {what} of those above {limit}. Answer with the code only.",
        max_tokens=128,
    )
    passed = 0
    for _ in range(tests):
        numbers = [ep.rng.randint(0, 2000) for _ in range(8)] + [limit + 1]
        wanted = TASKS[what]([number for number in numbers if number > limit])
        ran = await ep.sandbox.python(reply.text, stdin=" ".join(map(str, numbers)), seconds=2, memory_mb=256)
        passed += ran.ok and ran.stdout.strip() == str(wanted)
    return Score(passed / tests, all=float(passed == tests))
