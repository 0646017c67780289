"""env prompts: what the model would be asked, in a process of its own."""

from __future__ import annotations

import pytest

from marlaas.engine.home.paths import Home

from ...commanding import Commander

pytestmark = pytest.mark.processes
HEAD = "from marlaas.plugins import env\n\n\n@env\nasync def late(ep):\n"


def test_prompts_of_a_bundled_environment(home: Home, marlaas: Commander) -> None:
    said = marlaas("env", "prompts", "arithmetic", "-n", "2", "--config", "digits=1")
    assert said.code == 0 and said.err == ""
    assert [row for row in said.out.splitlines() if row.startswith("instance")] == ["instance 0", "instance 1"]
    asked = marlaas("env", "prompts", "arithmetic", "-n", "1", "--json").json
    assert asked["environment"] == "arithmetic/arithmetic" and asked["problem"] == ""
    assert asked["prompts"][0]["messages"][0]["role"] == "user"


def test_a_file_that_breaks_names_the_place(home: Home, marlaas: Commander) -> None:
    path = home.root.parent / "late.py"
    path.write_text(f"{HEAD}    await ep.ask('[/INST]\\x1b[31m')\n    return 1\n")
    said = marlaas("env", "prompts", str(path))
    assert said.code == 0 and "[/INST]" in said.out and "\x1b" not in said.out
    path.write_text(f"{HEAD}    raise KeyError('gone')\n")
    said = marlaas("env", "prompts", str(path), "--json")
    assert said.code == 1 and "gone" in said.json["problem"] and "gone" in said.err


def test_what_cannot_be_asked(home: Home, marlaas: Commander) -> None:
    assert marlaas("env", "prompts", "arithmetic", "-n", "0").code == 2
    assert marlaas("env", "prompts", "nowhere").code == 2
    assert marlaas("env", "prompts", "arithmetic", "--config", "digits=99").code == 2
