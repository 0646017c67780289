"""Episodes with real programs: what they are given, what they are worth, and how they fail."""

from __future__ import annotations

import asyncio
import errno
import json
import math
import os
import re
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, strategies as st

from marlaas.plugins import BlockingEpisode, Episode, Score, env
from marlaas.plugins.data import rows_of
from marlaas.plugins.host.blame import may_pay
from marlaas.plugins.programs import ProgramFailed, ProgramRun, playing as running
from marlaas.plugins.programs.playing import mount_place, read_text, reward_of, seed_of
from marlaas.plugins.rewards import rewards_of
from tests.loading import load

from .episodes import Served, episode, result_of, rewards

EXAMPLES = Path(__file__).parents[3] / "examples"

TELLS = "import json, os, sys; print(json.dumps([sys.argv[1:], dict(os.environ), sys.stdin.read(), os.getcwd()]))"


@pytest.fixture
def scratch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Where programs have their folders: empty again afterwards."""
    folder = tmp_path / "scratch"
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    yield folder
    assert [path.name for path in folder.rglob("*")] in ([], ["program"])


@pytest.mark.processes
@pytest.mark.usefixtures("scratch")
async def test_a_program_has_a_home_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """Agents read and write their user's settings there."""
    monkeypatch.setenv("XDG_CONFIG_HOME", "/of/the/person")
    code = """
import os, pathlib
settings, script = pathlib.Path.home() / ".agent/config.toml", pathlib.Path("say.py")
assert "XDG_CONFIG_HOME" not in os.environ and pathlib.Path.home() != pathlib.Path.cwd()
print(settings.read_text() + script.read_text() + pathlib.Path(".env").read_text())
"""
    files = {"~/.agent/config.toml": 'url = "{url}"\nmodel = "{model}"\n', "say.py": "print(f'{key}', '')\n"}
    files[".env"] = "KEY={key}"
    seen: list[ProgramRun] = []

    @env.program(["python", "-c", code], files=files)
    def agent(ep: BlockingEpisode, run: ProgramRun) -> float:
        seen.append(run)
        return 1.0

    await rewards(agent)
    script = "print(f'{key}', '')\n"
    settings = 'url = "http://127.0.0.1:9/v1"\nmodel = "policy"\n'
    assert seen[0].stdout == f"{settings}{script}KEY=tml-nobody\n", seen[0].stderr
    assert seen[0].files == (".env", "say.py")


@pytest.mark.processes
@pytest.mark.usefixtures("scratch")
async def test_what_a_program_is_given(scratch: Path) -> None:
    seen: list[ProgramRun] = []

    @env.program(
        ["python", "-c", TELLS, "{task[question]}", "{index}", "{seed}", "{split}", "{config[words]}"],
        env={"MINE": "{prompt} at {url} {key}", "BRACES": "${x} {}"},
        stdin="read {prompt}",
    )
    def tells(ep: BlockingEpisode, run: ProgramRun, task: Any, words: int = 3) -> float:
        seen.append(run)
        assert Path(run.folder).is_dir() and ep.task == task
        return words / 4

    task = {"question": "what is it?", "prompt": "say\nit"}
    ep = episode(tells, task)
    assert await result_of(tells, ep) == 0.75
    arguments, variables, read, folder = json.loads(seen[0].stdout)
    assert arguments == ["what is it?", "7", str(seed_of(ep)), "train", "3"]
    assert (variables["MINE"], variables["BRACES"]) == ("say\nit at http://127.0.0.1:9/v1 tml-nobody", "${x} {}")
    assert (read, json.loads(variables["MARLAAS_TASK"]), json.loads(variables["MARLAAS_CONFIG"])) == (
        "read say\nit",
        task,
        {"words": 3},
    )
    assert variables["OPENAI_BASE_URL"] == variables["OPENAI_API_BASE"] == "http://127.0.0.1:9/v1"
    assert variables["ANTHROPIC_BASE_URL"] == "http://127.0.0.1:9"
    assert variables["OPENAI_API_KEY"] == variables["ANTHROPIC_API_KEY"] == "tml-nobody"
    assert json.loads(variables["MARLAAS_ENDPOINTS"]) == {
        "agent": {"url": "http://127.0.0.1:9/v1", "key": "tml-nobody"}
    }
    assert Path(seen[0].folder).is_relative_to(scratch) and Path(folder).is_relative_to(mount_place() or scratch)
    assert Path(variables["TMPDIR"]).parent == Path(folder).parent
    assert ep.logged["exit_code"] == 0.0 and ep.logged["program_seconds"] == seen[0].seconds > 0


@pytest.mark.processes
@pytest.mark.usefixtures("scratch")
async def test_all_programs_see_their_folders_at_one_path() -> None:
    """So that equal agents write equal prompts; what lies there is each one's own."""
    if not mount_place():
        pytest.skip("this system mounts nothing for its users")
    code = "import os, sys, tempfile; open(sys.argv[1], 'x'); print(*os.listdir(), sys.argv[1], os.environ['HOME'])"
    places: list[str] = []

    @env.program(["python", "-c", code, os.path.join(mount_place(), "work", "a")])
    def agent(ep: BlockingEpisode, run: ProgramRun) -> float:
        places.append(run.stdout)
        return float(run.files == ("a",))

    assert [each.by_agent for each in await asyncio.gather(*(rewards(agent) for _ in range(3)))] == [{"agent": 1.0}] * 3
    assert set(places) == {f"a {mount_place()}/work/a {mount_place()}/home\n"}


@pytest.mark.processes
@pytest.mark.usefixtures("scratch")
async def test_a_long_task_is_in_its_file() -> None:
    code = "import json, os; print(len(json.load(open(os.environ['MARLAAS_TASK_FILE']))), os.environ['MARLAAS_TASK'])"
    solve = env.program(["python", "-c", code], reward=lambda run: run.stdout == "200000 \n")
    assert await result_of(solve, episode(solve, "x" * 200_000)) is True


@pytest.mark.processes
@pytest.mark.usefixtures("scratch")
async def test_a_task_that_no_program_can_read() -> None:
    solve = env.program("true", reward="exit")
    with pytest.raises(TypeError, match="true reads its task as JSON, which cannot hold it: it is of the type set"):
        await rewards(solve, {1j})


@pytest.mark.processes
@pytest.mark.usefixtures("scratch")
async def test_each_of_several_agents_has_an_address() -> None:
    solve = env.program(
        ["python", "-c", TELLS], reward=lambda run: {"first": 1, "second": 0}, agents=("first", "second")
    )
    ep = episode(solve)
    found = await rewards(solve)
    assert found.by_agent == {"first": 1.0, "second": 0.0}
    await result_of(solve, ep)
    assert list(ep.agents) == ["first", "second"]


@pytest.mark.processes
@pytest.mark.usefixtures("scratch")
@pytest.mark.parametrize(
    ("command", "reward"), [("true", 1.0), ("false", 0.0), (["python", "-c", "raise SystemExit(3)"], 0.0)]
)
async def test_an_exit_code_is_a_reward(command: Any, reward: float) -> None:
    assert (await rewards(env.program(command, reward="exit"))).by_agent == {"agent": reward}


def writing(text: str, code: int = 0) -> list[str]:
    return ["python", "-c", f"open('r.txt', 'w').write({text!r}); raise SystemExit({code})"]


@pytest.mark.processes
@pytest.mark.usefixtures("scratch")
@pytest.mark.parametrize("code", [0, 1])
async def test_a_file_is_a_reward_however_the_program_ends(code: int) -> None:
    found = await rewards(env.program(writing('{"reward": 0.25, "parts": 3}', code), reward="r.txt"))
    assert (found.by_agent, found.parts) == ({"agent": 0.25}, {"parts": 3.0})


@pytest.mark.processes
@pytest.mark.usefixtures("scratch")
async def test_a_file_that_says_nothing_is_an_error() -> None:
    with pytest.raises(ValueError, match=r"r.txt must hold a number or JSON with 'reward', not 'well done'"):
        await rewards(env.program(writing("well done"), reward="r.txt"))


@pytest.mark.processes
@pytest.mark.usefixtures("scratch")
@pytest.mark.parametrize(
    ("command", "reward", "says"),
    [
        ("true", "r.txt", "the program ended with exit code 0 and left no r.txt"),
        (
            ["python", "-c", "print(1); raise SystemExit('no module named x')"],
            "r.txt",
            "with exit code 1 and left no r.txt; its last lines: no module named x",
        ),
        ("false", lambda run: 1.0, "the program ended with exit code 1"),
        (["python", "-c", "import os; os.kill(os.getpid(), 15)"], lambda run: 1.0, "was ended by signal 15"),
        (["python", "-c", "import os; os.kill(os.getpid(), 9)"], "exit", "was ended by signal 9"),
        (["bash", "-c", "exec no-such-thing"], "exit", "exit code 127; its last lines: .*no-such-thing"),
        ("no-such-thing", "exit", "the program no-such-thing is not on the PATH: install it, or name it by its path"),
        ("opencode run", "exit", "opencode is not on the PATH: install it with `npm install -g opencode-ai`, or name"),
        ("./none.sh", "exit", "the program ./none.sh is not there: name it under files"),
        (["true", "a\0b"], "exit", "the program true cannot be started: embedded null byte"),
        (["true", "x" * (1 << 20)], "exit", "the program true cannot be started: .*too long"),
    ],
    ids=lambda value: "function" if callable(value) else str(value)[:30],
)
async def test_failures_have_no_reward(command: Any, reward: Any, says: str) -> None:
    with pytest.raises(ProgramFailed, match=says):
        await rewards(env.program(command, reward=reward))


@pytest.mark.processes
@pytest.mark.usefixtures("scratch")
async def test_a_failure_shows_what_was_printed() -> None:
    program = env.program(["python", "-c", "raise SystemExit('sorry')"], reward="exit")
    ep = episode(program)
    await result_of(program, ep)
    assert (ep.logged["exit_code"], ep.logged["stderr"]) == (1.0, "sorry\n")


@pytest.mark.processes
@pytest.mark.usefixtures("scratch")
async def test_a_full_disk_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is the machine's, so ``on_error`` pays nothing for it."""

    def mkdir(path: str, *mode: int) -> None:
        if path.endswith("/tmp"):
            raise OSError(errno.ENOSPC, "No space left on device")
        real(path, *mode)

    real = os.mkdir
    monkeypatch.setattr(os, "mkdir", mkdir)
    with pytest.raises(ProgramFailed, match=r"no folder can be made for the program: .*No space left") as caught:
        await rewards(env.program("true", reward="exit"))
    assert not may_pay(caught.value)


@pytest.mark.processes
@pytest.mark.usefixtures("scratch")
@pytest.mark.skipif(sys.platform != "linux", reason="other systems are not watched")
@pytest.mark.parametrize("folder", [".", "~", "$TMPDIR"])
async def test_a_program_that_fills_the_disk_is_ended(folder: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Links count once, and what they lead to does not count."""
    monkeypatch.setattr(running, "DISK", 1 << 20)
    fits = f"cd {folder}; ln -s /usr usr; head -c 900000 /dev/zero > a; ln a b; sleep 0.5"
    assert (await rewards(env.program(["bash", "-c", fits], reward="exit"))).by_agent == {"agent": 1.0}
    fills = f"cd {folder}; mkdir in; while :; do n=$((n+1)); head -c 100000 /dev/zero > in/$n; done"
    with pytest.raises(ProgramFailed, match="took more than 1 MB of disk space, and was ended: have it") as caught:
        await rewards(env.program(["bash", "-c", fills], reward="exit"))
    assert not may_pay(caught.value)


@pytest.mark.processes
@pytest.mark.usefixtures("scratch")
async def test_a_function_prepares_and_another_judges() -> None:
    async def right(ep: Episode, run: ProgramRun) -> bool:
        assert run.files == ("left/behind",) and run.read("left/behind") == "there"
        with pytest.raises(FileNotFoundError, match="the program ended with exit code 0 and left no other"):
            run.read("other")
        return run.stdout.split() == [ep.task["answer"]]

    code = "import os, sys; os.mkdir('left'); open('left/behind', 'w').write('there'); print(sys.argv[1][::-1])"

    @env.program(["python", "-c", code, "{prompt}"], reward=right)
    def solve(ep: BlockingEpisode, word: str = "abc") -> str:
        ep.task = {"answer": word[::-1]}
        return word

    assert (await rewards(solve, word="xyz")).by_agent == {"agent": 1.0}


@pytest.mark.processes
@pytest.mark.usefixtures("scratch")
async def test_nobody_says_a_reward() -> None:
    with pytest.raises(ValueError, match="train is one of all, main, longest, not 'most'"):
        env.program("true", train="most")
    solve = env.program("true", name="solve")
    with pytest.raises(TypeError, match=r'solve says no reward: give reward="exit", .* under @solve.score'):
        await result_of(solve, episode(solve))

    @solve.score
    def score(task: Any, transcript: Any) -> float:
        return 1.0

    assert await result_of(solve, episode(solve)) is None


@pytest.mark.processes
@pytest.mark.usefixtures("scratch")
async def test_files_are_there_anew_each_time(tmp_path: Path) -> None:
    (tmp_path / "mine" / "lib").mkdir(parents=True)
    (tmp_path / "mine" / "run.sh").write_text("#!/bin/sh\ncat lib/a b; echo x >> b; exit 1\n")
    (tmp_path / "mine" / "lib" / "a").write_text("beside ")
    (tmp_path / "mine" / "__init__.py").write_text(
        "from marlaas.plugins import env\n"
        "files = {'lib': 'lib.d', 'b': 'a text'}\n"
        "plays = env.program('./run.sh', files=files, reward=lambda run: 1, exit_codes=(1,))\n"
    )
    (tmp_path / "mine" / "lib.d").mkdir()
    (tmp_path / "mine" / "lib.d" / "a").write_text("beside ")
    plays = load(tmp_path / "mine")["run"]
    for _ in range(2):
        ep = episode(plays)
        await result_of(plays, ep)
        assert ep.logged["exit_code"] == 1.0 and ep.logged["stderr"] == ""
    assert (tmp_path / "mine" / "lib.d" / "a").read_text() == "beside "


@pytest.mark.processes
@pytest.mark.usefixtures("scratch")
async def test_the_example_is_paid_for_what_its_model_says() -> None:
    own_agent = load(EXAMPLES / "own_agent")["own_agent"]
    served = Served("the sum is 8", "9")
    async with served.listening() as opens:
        ep = episode(own_agent, None, opens)
        a, b = (ep.rng.randrange(10) for _ in "ab")
        served.replies = [f"that is {a + b}", str(a + b + 1)]
        for reward in (1.0, 0.0):
            found = await rewards(own_agent, None, opens)
            assert found.by_agent == {"agent": reward}
    path, key, body = served.asked[0]
    assert (path, key) == ("/v1/chat/completions", "tml-episode")
    assert body["messages"] == [{"role": "user", "content": f"{a}+{b}="}]


TOML = """
adapter = "program"
name = "told"
command = "python -c 'import sys; open(\\"r\\", \\"w\\").write(open(\\"n\\").read() + sys.argv[1])' {config}"
reward = "r"
timeout = 20
on_error = 0.5

[files]
n = "1"

[env]
A = "{index}"
"""


@pytest.mark.processes
@pytest.mark.usefixtures("scratch")
async def test_a_toml_file_names_a_scorer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "judges").mkdir()
    (tmp_path / "judges" / "of_agents.py").write_text("def right(run):\n    return run.stdout == 'yes\\n'\n")
    monkeypatch.syspath_prepend(tmp_path)
    told = tmp_path / "told.toml"
    for words, reward in (("echo yes", 1.0), ("echo no", 0.0)):
        told.write_text(f'adapter = "program"\nname = "told"\ncommand = "{words}"\nreward = "judges.of_agents:right"\n')
        assert (await rewards(load(told)["told"])).by_agent == {"agent": reward}
    for named, says in (("judges.of_agents:wrong", "has no function wrong"), ("no_such_judge:right", "no_such_judge")):
        told.write_text(f'adapter = "program"\ncommand = "true"\nreward = "{named}"\n')
        with pytest.raises((SyntaxError, ModuleNotFoundError), match=says):
            load(told)


@pytest.mark.processes
@pytest.mark.usefixtures("scratch")
async def test_a_toml_file_is_a_whole_environment(tmp_path: Path) -> None:
    (tmp_path / "told.toml").write_text(TOML.replace("{config}", "5"))
    told = load(tmp_path / "told.toml")["told"]
    assert (told.timeout, told.on_error) == (20.0, 0.5)
    assert (await rewards(told)).by_agent == {"agent": 15.0}


JSON: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.floats() | st.integers() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=8,
)


def test_parts_and_agents() -> None:
    score = reward_of('{"reward": 0.5, "spelling": 1, "value": 2}', "reward.json")
    assert isinstance(score, Score) and score.value == 0.5 and score.parts == {"spelling": 1.0, "value": 2.0}
    assert reward_of('{"reward": {"first": 1, "second": -1}}', "reward.json") == {"first": 1.0, "second": -1.0}


@pytest.mark.parametrize(
    ("text", "error", "says"),
    [
        ("", ValueError, "r is empty: write a number"),
        ("good", ValueError, "r must hold a number or JSON with 'reward', not 'good'"),
        ("nan", ValueError, "what r holds must be finite, not nan"),
        ("NaN", ValueError, "must be finite"),
        ("1e400", ValueError, "must be finite"),
        ("1" * 5000, ValueError, "must be finite"),
        ("2e9", ValueError, "must lie between"),
        ("null", TypeError, "what r holds must be a number, not None"),
        ('"1"', TypeError, "must be a number, not str"),
        ("[1]", TypeError, "must be a number, not list"),
        ("{}", ValueError, "r has no 'reward'; it has nothing"),
        ('{"score": 1}', ValueError, "r has no 'reward'; it has score"),
        ('{"reward": "1"}', TypeError, "'reward' in r must be a number"),
        ('{"reward": 1, "note": "well done"}', TypeError, "'note' in r must be a number, not str 'well done'"),
        ('{"reward": {"first": null}}', TypeError, "the reward of 'first' in r must be a number"),
        ('{"reward": {"first": 1}, "x": 1}', ValueError, "so 'x' cannot stand beside 'first'"),
        ("[" * 100_000, ValueError, "must hold a number or JSON"),
    ],
)
def test_what_is_no_reward(text: str, error: type[Exception], says: str) -> None:
    with pytest.raises(error, match=says):
        reward_of(text, "r")


@given(st.text() | JSON.map(json.dumps))
def test_any_text_is_a_reward_or_an_error_in_words(text: str) -> None:
    try:
        rewards = rewards_of(reward_of(text, "r"), ("agent",), {})
    except (TypeError, ValueError) as error:
        assert str(error)
    else:
        assert all(math.isfinite(number) for number in rewards.by_agent.values())


def test_only_plain_files_are_read(tmp_path: Path) -> None:
    (tmp_path / "r").write_text("1")
    assert (read_text(str(tmp_path), "r", 10), read_text(str(tmp_path), "none", 10)) == ("1", None)
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "link").symlink_to("/dev/zero")
    (tmp_path / "long").write_text("1" * 11)
    (tmp_path / "folder").mkdir()
    (tmp_path / "bytes").write_bytes(b"\xff")
    assert read_text(str(tmp_path), "bytes", 10) == "\ufffd"
    for name, says in [("pipe", "no plain file"), ("link", "cannot be read"), ("long", "than 10"), ("folder", "plain")]:
        with pytest.raises(ValueError, match=says):
            read_text(str(tmp_path), name, 10)


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


@pytest.mark.processes
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
