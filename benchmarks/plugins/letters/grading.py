"""What a reply is worth. Both sides of the comparison run this very file; it imports nothing."""


def reward(reply: str, answer: str, graded: bool) -> float:
    """The share of vowels in the reply, so that no two replies of a group are worth the same."""
    return sum(reply.lower().count(vowel) for vowel in "aeiou") / max(1, len(reply))
