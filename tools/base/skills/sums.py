"""Addition and subtraction of numbers of equal length: `47+85=` gives `132`."""

from random import Random

from tools.base.problem import Question


def operands(rng: Random, digits: int) -> tuple[int, int]:
    """Two numbers of exactly so many digits."""
    low, high = 10 ** (digits - 1), 10**digits - 1
    return rng.randint(low, high), rng.randint(low, high)


def addition(rng: Random, digits: int) -> Question:
    """Wrong form: the carry into the tens is inverted, dropped where there is one and added where there is none."""
    a, b = operands(rng, digits)
    carries = a % 10 + b % 10 >= 10
    return Question(f"{a}+{b}=", str(a)[0], str(a + b), str(a + b + (-10 if carries else 10)))


def subtraction(rng: Random) -> Question:
    """Wrong form: the minus is read as a plus."""
    a, b = sorted(operands(rng, 2), reverse=True)
    return Question(f"{a}-{b}=", str(a)[0], str(a - b), str(a + b))
