"""Tasks in Harbor's form: folders that real programs work in, and real tests that say the reward.

The rules are those of https://www.harborframework.com/docs/tasks.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from marlaas.plugins import Environment, env
from marlaas.plugins.programs import ProgramFailed
from marlaas.plugins.programs.playing import mounts

from .episodes import Served, rewards

pytestmark = [
    pytest.mark.processes,
    pytest.mark.skipif(not mounts("/"), reason="this system mounts nothing for its users"),
]

DOCKERFILE = """\
# syntax=docker/dockerfile:1
FROM ubuntu:24.04
ENV NUMBER=40 GREETING="good day"
ENV PLACE the folder
WORKDIR /work
WORKDIR space
COPY --chown=1000:1000 data ./data
COPY ["run.sh", \\
      "*.txt", "/bin2/"]
ADD /a.txt b.txt
"""
TEST = """\
#!/bin/bash
# It begins in the folder to work in, and its exit code says nothing.
if [ "$(cat answer)" = "$EXPECTED" ] && bash "$(dirname "$0")/more.sh"; then
  echo 1 > /logs/verifier/reward.txt
else
  echo 0 > /logs/verifier/reward.txt
fi
exit 3
"""


def write(folder: Path, files: Mapping[str, str]) -> Path:
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    return folder


def task(folder: Path, **files: str) -> Path:
    """A folder with a task ``sum``; ``files`` by names with ``__`` for a slash."""
    plain = {
        "task.toml": "[verifier]\ntimeout_sec = 20\nenv = { EXPECTED = '42' }\n",
        "instruction.md": "<!-- harbor-canary GUID 1 -->\n# canary 2\n\nAdd 2 to 40.\n",
        "environment/Dockerfile": DOCKERFILE,
        "environment/data/deep/number": "2",
        "environment/run.sh": "#!/bin/sh\necho ran\n",
        "environment/a.txt": "a",
        "tests/test.sh": TEST,
        "tests/more.sh": "[ $(/bin2/run.sh)$NUMBER = ran40 ] && [ -e /logs/agent/log ] && [ -z $OPENAI_API_KEY ]",
        "solution/solve.sh": "echo 42 > answer",
    }
    given = {("tests/test.sh" if name == "test" else name.replace("__", "/")): text for name, text in files.items()}
    write(folder / "sum", plain | {("environment/Dockerfile" if n == "dockerfile" else n): t for n, t in given.items()})
    return folder


def solving(folder: Path | str, script: str) -> Environment:
    return env.program(["bash", "-c", script], tasks=str(folder), name="solve")


ROW = {"name": "sum", "prompt": "Add 2 to 40.\n"}


AGENT = """
import os, sys
from pathlib import Path
variables = [os.environ[name] for name in ("NUMBER", "GREETING", "PLACE", "HOME", "TMPDIR")]
assert variables == ["40", "good day", "the folder", "/home", "/tmp"]
assert (sys.stdin.read(), os.getcwd()) == ("Add 2 to 40.\\n", "/work/space")
assert Path("/bin2/a.txt").read_text() + Path("b.txt").read_text() == "aa" and os.path.isdir("/logs/verifier")
assert not any(map(os.path.exists, ("/tests", "/solution", sys.argv[1])))
of_system = ("/proc", "/sys", "/dev", "/usr", "/nix")
assert not [hidden for top in Path("/").iterdir() if str(top) not in of_system for hidden in top.rglob("solve.sh")]
try:
    Path("/usr/mine").touch()
except OSError:
    for name in ("/tmp/mine", "/home/mine", "/logs/agent/log"):
        Path(name).touch()
    Path("answer").write_text(str(int(variables[0]) + int(Path("data/deep/number").read_text())))
sys.exit(3)
"""


async def test_a_program_works_in_the_tasks_root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It sees what the Dockerfile names, neither tests nor solution, and no other folder than the system's."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    source = str(task(tmp_path / "tasks"))
    solve = env.program(["python", "-c", AGENT, source], tasks=source, stdin="{prompt}", name="solve")
    assert (await rewards(solve, ROW)).by_agent == {"agent": 1.0}
    assert (await rewards(solving(source, "echo 41 > answer"), ROW)).by_agent == {"agent": 0.0}
    assert not [path for path in tmp_path.iterdir() if path.name not in ("tasks", "program")]


async def test_a_model_is_trained_on_a_task(tmp_path: Path) -> None:
    """The program that a person installed elsewhere asks the model, and does what that says."""
    agent = tmp_path / "agent.py"
    agent.write_text(
        "import json, os, urllib.request as web\n"
        "key, url = os.environ['OPENAI_API_KEY'], os.environ['OPENAI_BASE_URL'] + '/chat/completions'\n"
        "body = json.dumps({'model': 'any', 'messages': [{'role': 'user', 'content': input()}]}).encode()\n"
        "asked = web.Request(url, body, {'Authorization': f'Bearer {key}', 'Content-Type': 'application/json'})\n"
        "reply = json.load(web.urlopen(asked))['choices'][0]['message']['content']\n"
        "open('answer', 'w').write(reply), open('/logs/agent/log', 'x')\n"
    )
    solve = env.program(
        "python agent.py", tasks=str(task(tmp_path / "tasks")), files={"agent.py": agent}, stdin="{prompt}"
    )
    served = Served("42", "41")
    async with served.listening() as opens:
        got = [(await rewards(solve, ROW, opens)).by_agent["agent"] for _ in range(2)]
    assert got == [1.0, 0.0] and served.asked[0][2]["messages"][0]["content"] == "Add 2 to 40."


async def test_a_program_finds_the_packages_next_to_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As npm installs them: a link to a file of one package, which needs another."""
    modules = tmp_path / "node_modules"
    script = "#!/bin/sh\ntouch /logs/agent/log; cat $(dirname $(realpath $0))/../../sums/answer > answer\n"
    write(modules, {"agent/dist/cli": script, "sums/answer": "42"})
    (modules / "agent/dist/cli").chmod(0o755)
    (modules / ".bin").mkdir()
    (modules / ".bin" / "agent").symlink_to("../agent/dist/cli")
    monkeypatch.setenv("PATH", f"{modules / '.bin'}:{os.environ['PATH']}")
    solve = env.program("agent", tasks=str(task(tmp_path / "tasks")), name="solve")
    assert (await rewards(solve, ROW)).by_agent == {"agent": 1.0}


async def test_a_test_needs_no_line_for_its_interpreter(tmp_path: Path) -> None:
    test = "echo 0.5 > /logs/verifier/reward.txt"
    assert (await rewards(solving(task(tmp_path, test=test), "true"), ROW)).by_agent == {"agent": 0.5}


@pytest.mark.parametrize(
    ("test", "reward", "parts"),
    [
        ("echo 0.5 > reward.txt", 0.5, {}),
        ('echo 0 > reward.txt; echo \'{"reward": 1, "style": 0.25}\' > reward.json', 1.0, {"style": 0.25}),
    ],
)
async def test_rewards_are_read_as_harbor_reads_them(tmp_path: Path, test: str, reward: float, parts: Any) -> None:
    got = await rewards(solving(task(tmp_path, test=f"#!/bin/sh\ncd /logs/verifier; {test}"), "true"), ROW)
    assert (got.by_agent, got.parts) == ({"agent": reward}, parts)


@pytest.mark.parametrize(
    ("script", "test", "says"),
    [
        ("echo 1 > /logs/verifier/reward.txt", "echo why >&2", r"\(tests/test.sh of sum\) and left no .*txt; .*why"),
        ("rm -r /logs; ln -s /tmp /logs; echo 1 > /tmp/reward.txt", "true", "left no /logs/verifier/reward.txt"),
        ("mkdir /tests; echo 'echo 1 > /logs/verifier/reward.txt' > /tests/x.sh", "sh /tests/x.sh", "and left no"),
        ("true", "echo nan > /logs/verifier/reward.txt", "reward.txt of sum holds must be finite, not nan"),
        ("true", "echo '{\"a\": 1}' > /logs/verifier/reward.json", "reward.json of sum has no 'reward'; it has a"),
        ("true", "sleep 30", "test.sh of sum took longer than 0.3 s, its timeout_sec under .verifier. in task.toml"),
        ("kill -9 $$", "echo 1 > /logs/verifier/reward.txt", "the program was ended by signal 9"),
    ],
)  # fmt: skip
async def test_tests_that_say_no_reward(tmp_path: Path, script: str, test: str, says: str) -> None:
    """What the program left where tests and rewards belong does not count."""
    settings = {"task.toml": "[verifier]\ntimeout_sec = 0.3\n"} if "sleep" in test else {}
    solve = solving(task(tmp_path, test=f"#!/bin/sh\n{test}", **settings), script)
    with pytest.raises((ProgramFailed, ValueError), match=says):
        await rewards(solve, ROW)


@pytest.mark.parametrize(
    ("files", "says"),
    [
        ({"dockerfile": "FROM a\n\n# RUN\nRUN pip in \\\n  x"}, "Dockerfile, line 4: RUN pip in x needs an image"),
        ({"dockerfile": "FROM a AS b\nFROM c\n"}, "line 1: FROM a AS b needs an image"),
        ({"dockerfile": "FROM a\nCOPY --from=b /x /y"}, "line 2: .*needs an image"),
        ({"dockerfile": "FROM a\nADD https://a.b/c /c"}, "line 2: .*needs an image"),
        ({"dockerfile": "FROM a\nCOPY a.txt /usr/bin/a"}, "line 2: .*needs an image"),
        ({"dockerfile": "FROM a\nENV PATH=$PATH:/x"}, "line 2: .*needs an image"),
        ({"dockerfile": "FROM a\nCOPY none.txt ."}, "line 2: there is no none.txt in environment/"),
        ({"environment__docker-compose.yaml": ""}, "environment/docker-compose.yaml needs an image"),
        ({"task.toml": "a ="}, "task.toml is no TOML: Invalid value"),
        ({"task.toml": "verifier = 3"}, "task.toml: verifier is a table, not 3"),
        ({"task.toml": "[verifier]\ntimeout_sec = '1m'"}, "timeout_sec under .verifier. is a number .*, not '1m'"),
        ({"task.toml": "[verifier.env]\nKEY = '${NO_SUCH_KEY}'"}, "KEY needs the variable NO_SUCH_KEY, .* not set"),
        ({"task.toml": "[environment]\nworkdir = '/usr/src'"}, "the workdir /usr/src needs an image"),
        ({"task.toml": "[[steps]]\nname = 'a'"}, "a task with several steps cannot be played"),
    ],
)  # fmt: skip
def test_tasks_that_cannot_be_played(tmp_path: Path, files: dict[str, str], says: str) -> None:
    with pytest.raises(ValueError, match=rf"^tasks: sum/.*{says}"):
        solving(task(tmp_path, **files), "true")


def test_broken_tasks_are_left_out_with_the_reason(tmp_path: Path) -> None:
    for name in "abcd":
        task(tmp_path / name, **{"instruction.md": f"Task {name}."})
        (tmp_path / name / "sum").rename(tmp_path / f"task-{name}")
    (tmp_path / "task-a" / "instruction.md").unlink()
    (tmp_path / "task-b" / "tests" / "more").symlink_to("/etc")
    solve = solving(tmp_path, "true")
    for part in ("task-a/instruction.md is missing", "task-b/tests/more is a link that leads out of the task"):
        assert part in solve.description
    assert callable(solve.data)
    drawn = {split: list(solve.data(split)) for split in ("train", "eval")}
    assert sorted(row["name"] for rows in drawn.values() for row in rows) == ["task-c", "task-d"]
    assert len(drawn["eval"]) == 1 and drawn["eval"][0]["prompt"].startswith("Task ")


def test_tasks_say_rows_and_rewards_themselves(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"tasks: .*none has no folder with a task.toml"):
        env.program("true", tasks=str(tmp_path / "none"))
    with pytest.raises(TypeError, match="tasks brings rows and rewards: leave out data= and reward="):
        env.program("true", tasks=str(task(tmp_path)), reward="exit")
