"""Check: programs in the sandbox end in time where the reply is not to blame.

Canned replies ask for no work, so what runs out of time is the environment's own part of the program.
"""

from __future__ import annotations

from collections.abc import Sequence

from .finding import Finding
from .plays import Played

CHECK = "sandbox"
METRIC = "sandbox_timeouts"
"""What an episode that uses the sandbox logs: how many of its programs ran out of time."""


def judge(played: Sequence[Played]) -> list[Finding]:
    """A warning where a program ran out of time; nothing for environments that use no sandbox, or in time."""
    used = [one for one in played if one.outcome is not None and METRIC in one.outcome.metrics]
    late = [one for one in used if one.outcome is not None and one.outcome.metrics[METRIC]]
    if not late:
        return []
    text = f"In {len(late)} of {len(used)} episodes a program in the sandbox ran out of time, such as at train instance"
    text += f" {late[0].index}, given {late[0].reply.label}: a right answer may well do so, too. Give it more seconds="
    return [Finding(CHECK, "warning", f"{text}…, or less to do.")]
