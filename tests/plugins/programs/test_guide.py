"""The fifteen lines of the guide: they are a plugin, and play as they stand there.

Here something as small as the example needs stands in for OpenAI's client, which is no dependency; the slow tests of
clients run the same lines with the real one.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from marlaas.plugins.data import rows_of
from marlaas.plugins.host.loading import load

from .episodes import Served, rewards

pytestmark = pytest.mark.processes
GUIDE = Path(__file__).parents[3] / "docs" / "guides" / "endpoints.md"
CLIENT = """
import json, os
from types import SimpleNamespace as Made
from urllib.request import Request, urlopen

class OpenAI:
    @property
    def chat(self):
        return Made(completions=Made(create=self.create))

    def create(self, **body):
        key = {"Authorization": "Bearer " + os.environ["OPENAI_API_KEY"]}
        request = Request(os.environ["OPENAI_BASE_URL"] + "/chat/completions", json.dumps(body).encode(), key)
        return json.loads(urlopen(request).read(), object_hook=lambda found: Made(**found))
"""


def shown() -> tuple[str, str]:
    """The plugin and the agent."""
    first, second, *_ = re.findall(r"(?m)^```python\n(.*?)^```", GUIDE.read_text("utf-8"), re.DOTALL | re.M)
    return first, second


def test_they_are_fifteen_lines() -> None:
    assert sum(bool(line.strip()) for text in shown() for line in text.splitlines()) <= 15


async def test_they_play_as_they_stand_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "sums"
    folder.mkdir()
    for name, text in zip(("__init__.py", "my_agent.py"), shown(), strict=True):
        (folder / name).write_text(text)
    (tmp_path / "openai.py").write_text(CLIENT)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    sums = load(folder)["sums"]
    train, held_out = (rows_of(sums.data, split, folder) for split in ("train", "eval"))
    assert len(train) == 80 and len(held_out) == 20 and not [row for row in held_out if row in train]
    for answer, reward in ((train[7]["answer"], 1.0), ("none", 0.0)):
        served = Served(answer)
        async with served.listening() as opens:
            assert (await rewards(sums, train[7], opens)).by_agent == {"agent": reward}
        assert served.asked[0][2]["messages"] == [{"role": "user", "content": train[7]["question"]}]
