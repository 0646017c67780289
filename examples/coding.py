"""Code that a model wrote, run in a sandbox: a program that reads two numbers and prints a third.

    user       Write a Python program that reads two numbers, one per line, and prints their product plus 47.
    assistant  print(int(input()) * int(input()) + 47)

The program sees its input; what it should print is known here alone and compared here. A reward that the program could
write itself, into a file or by its exit code, would soon be all that it writes.
"""

from marlaas.plugins import Episode, env

TASKS = {"sum": int.__add__, "product": int.__mul__, "difference": int.__sub__}


@env(timeout=30)
async def coding(ep: Episode, tests: int = 3) -> float:
    """Pays the share of inputs for which the program prints the right number."""
    word, more = ep.rng.choice(sorted(TASKS)), ep.rng.randint(1, 99)
    task = f"reads two numbers, one per line, and prints their {word} plus {more}"
    reply = await ep.ask(f"Write a Python program that {task}.")
    right = 0
    for _ in range(tests):
        a, b = ep.rng.randint(10, 99), ep.rng.randint(10, 99)
        ran = await ep.sandbox.python(reply.text, stdin=f"{a}\n{b}\n", seconds=2, memory_mb=256)
        right += ran.ok and ran.stdout.strip() == str(TASKS[word](a, b) + more)
        if ran.timed_out:
            break  # the other inputs would take as long
    ep.log(solved=float(right == tests))
    return right / tests
