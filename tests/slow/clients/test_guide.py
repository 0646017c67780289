"""The guide's fifteen lines as they stand there, with the libraries that it names: they run, and learn."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from tests.end_to_end.conftest import Lab

from .conftest import scores, shipped_lab, trained

__all__ = ["shipped_lab"]
pytestmark = [pytest.mark.clients, pytest.mark.processes, pytest.mark.timeout(1800)]

GUIDE = Path(__file__).parents[3] / "docs" / "guides" / "endpoints.md"
FILES = ("__init__.py", "my_agent.py", "pyproject.toml", "task.toml")
"""What the guide's first four blocks are."""
STEPS = 20
"""Of the guide."""
RISE = 0.2
"""Of the score on the 20 held-out rows, answered by the likeliest tokens. It was 0.45 to 0.6 by four seeds; the rewards
of so few episodes move by as much with the rows that are drawn."""


def test_the_lines_of_the_guide_run(shipped_lab: Lab) -> None:
    blocks = re.findall(r"(?ms)^```(?:python|toml)\n(.*?)^```", GUIDE.read_text("utf-8"))
    folder = shipped_lab.home.plugins / "sums"
    folder.mkdir()
    for name, text in zip(FILES, blocks, strict=False):
        (folder / name).write_text(text)
    task_file = (folder / "task.toml").rename(shipped_lab.home.root.parent / "task.toml")
    shipped_lab.marlaas("env", "allow", "sums", "--yes")
    (task,) = json.loads(shipped_lab.marlaas("submit", str(task_file), "--json"))["ids"]
    trained(shipped_lab, task, 1500)
    assert (shipped_lab.show(task)["state"], shipped_lab.show(task)["step"]) == ("done", STEPS), shipped_lab.show(task)
    found = scores(shipped_lab, task)
    assert found[-1] - found[0] > RISE, found
