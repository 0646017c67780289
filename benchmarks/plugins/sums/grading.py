"""What a reply is worth. Both sides of the comparison run this very file; it imports nothing."""


def reward(reply: str, answer: str, graded: bool) -> float:
    """1 for the answer and nothing else; ``graded`` also pays for the share of places that agree."""
    if not graded:
        return float(reply == answer)
    agree = sum(said == right for said, right in zip(reply, answer, strict=False))
    return agree / max(len(reply), len(answer))
