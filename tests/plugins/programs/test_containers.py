"""Programs in OCI images: what the client is told, what ends with an episode, and a real container where one runs."""

from __future__ import annotations

import asyncio
import os
import shutil
import subprocess
import tarfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from marlaas.plugins import env
from marlaas.plugins.programs import ProgramFailed
from marlaas.plugins.programs.playing import find_client

from .episodes import Served, rewards
from .test_harbor import ROW, task

pytestmark = pytest.mark.processes

CLIENT = """\
#!/bin/sh
printf '%s\\n' "$*" >> LOG
case $1 in
  info) echo "no daemon" >&2; exit INFO ;;
  run) while [ "$1" != an/image ]; do shift; done; shift; exec "$@" ;;
esac
"""
TOOLS = ("sh", "cat", "cp", "ln", "rm", "mkdir", "chmod", "chown", "stat", "sleep", "sed", "wget", "test")
BUSYBOX = shutil.which("busybox") or ""


@pytest.fixture(autouse=True)
def forgotten() -> Iterator[None]:
    """Each test finds its own client."""
    find_client.cache_clear()
    yield
    find_client.cache_clear()


def client(folder: Path, monkeypatch: pytest.MonkeyPatch, name: str, info: int = 0) -> Path:
    """A client that runs the program without a container; its log."""
    folder.mkdir(exist_ok=True)
    script = folder / name
    script.write_text(CLIENT.replace("LOG", str(folder / "log")).replace("INFO", str(info)))
    script.chmod(0o755)
    for tool in ("sh", "true", "sleep"):
        if not (folder / tool).exists():
            (folder / tool).symlink_to(shutil.which(tool, path=os.defpath) or "")
    monkeypatch.setenv("PATH", str(folder))
    return folder / "log"


@pytest.mark.parametrize(("name", "user"), [("podman", "0:0"), ("docker", f"{os.getuid()}:{os.getgid()}")])
async def test_what_the_client_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, user: str) -> None:
    log = client(tmp_path / "bin", monkeypatch, name)
    monkeypatch.setattr("marlaas.plugins.programs.playing.memory_mb", lambda: 512)
    given = env.program("sh -c true {prompt}", image="an/image", reward="exit", env={"MINE": "{url}"}, name="given")
    assert (await rewards(given, {"prompt": "a b"})).by_agent == {"agent": 1.0}
    _, inspected, told, removed = log.read_text().splitlines()
    assert inspected == "image inspect an/image" and told.endswith(" an/image sh -c true a b")
    container = told.partition("--name=")[2].split()[0]
    assert removed == f"rm --force --volumes {container}"
    for part in (f"--user={user}", "--network=host", "--memory=512m", "--entrypoint= ", "--workdir=/marlaas/work"):
        assert f" {part}" in told
    for folder in ("home", "tmp", "work", "task.json"):
        assert f":/marlaas/{folder} " in told
    for variable in ("HOME=/marlaas/home", "TMPDIR=/marlaas/tmp", "MINE=http://127.0.0.1:9/v1", "MARLAAS_TASK={"):
        assert f" --env={variable}" in told
    assert "--env=PATH" not in told


async def test_a_container_ends_with_its_episode(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of docker's, the client is no parent: to end that is not enough."""
    log = client(tmp_path / "bin", monkeypatch, "docker")
    playing = asyncio.create_task(rewards(env.program("sleep 1000", image="an/image", reward="exit")))
    while not log.exists() or "sleep 1000" not in log.read_text():
        await asyncio.sleep(0.01)
    playing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await playing
    assert log.read_text().splitlines()[-1].startswith("rm --force --volumes marlaas-program-")


async def test_without_a_client_an_image_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    given = env.program("true", image="an/image", reward="exit")
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(ProgramFailed, match=r"^an image needs podman or docker: install podman$"):
        await rewards(given)
    client(tmp_path / "bin", monkeypatch, "docker", info=1)
    with pytest.raises(ProgramFailed, match=r"and docker does not answer \(no daemon\): start it$"):
        await rewards(given)
    client(tmp_path / "bin", monkeypatch, "podman")  # what has failed is tried again
    with pytest.raises(ProgramFailed, match="exit code 125"):
        await rewards(env.program(["sh", "-c", "exit 125"], image="an/image", reward="exit"))
    for image in ("-v", "a b"):
        with pytest.raises(ValueError, match=r"^image is the name of one, as"):
            env.program("true", image=image)


@pytest.fixture(scope="module")
def image(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """An image that holds busybox alone."""
    find_client.cache_clear()
    try:
        program = find_client()
    except ProgramFailed as error:
        pytest.skip(str(error))
    if not BUSYBOX:
        pytest.skip("there is no busybox")
    archive, name = tmp_path_factory.mktemp("image") / "root.tar", f"localhost/marlaas-test:{os.getpid()}"
    with tarfile.open(archive, "w") as root:
        root.add(BUSYBOX, "bin/busybox")
        for tool in TOOLS:
            link = tarfile.TarInfo(f"bin/{tool}")
            link.type, link.linkname = tarfile.SYMTYPE, "busybox"
            root.addfile(link)
    subprocess.run([program, "import", archive, name], check=True, capture_output=True)
    yield name
    subprocess.run([program, "rmi", "--force", name], check=False, capture_output=True)


ASKS = """\
[ -e /bin/busybox ] && [ ! -e /usr/bin ] && [ "$PWD" = /marlaas/work ] && [ "$(cat)" = "Add 2" ] || exit 9
echo x > ~/x; echo x > $TMPDIR/x
body='{"model": "any", "messages": [{"role": "user", "content": "Add 2"}]}'
wget -q -O reply --header "Authorization: Bearer $OPENAI_API_KEY" --post-data "$body" $OPENAI_BASE_URL/chat/completions
sed 's/.*"content": "//; s/".*//' reply > reward.json
"""


@pytest.mark.slow
async def test_a_real_container_asks_the_model(image: str, tmp_path: Path) -> None:
    served = Served("0.5")
    solve = env.program(["sh", "-c", ASKS], image=image, stdin="{prompt}", reward="reward.json")
    async with served.listening() as opens:
        assert (await rewards(solve, {"prompt": "Add 2"}, opens)).by_agent == {"agent": 0.5}


@pytest.mark.slow
async def test_a_real_container_holds_a_task(image: str, tmp_path: Path) -> None:
    """Its tests see what the program left anywhere in the container; nothing of that is left afterwards."""
    test = "[ $(cat a.txt)$(cat /anywhere)$EXPECTED = bc42 ] && [ ! -e /tests/x ]"
    files = {"dockerfile": "FROM a\nWORKDIR /space\nCOPY a.txt .\nRUN more\nENV PATH=$PATH:/more\n"}
    source = task(tmp_path, test=f"#!/bin/sh\n{test}\necho $((1 - $?)) > /logs/verifier/reward.txt", **files)
    script = "[ ! -e /tests ] && echo b > a.txt && echo c > /anywhere && mkdir /tests && echo > /tests/x"
    settings = "[environment]\ndocker_image = '{}'\nworkdir = '/space'\n[verifier.env]\nEXPECTED = '42'\n"
    (source / "sum" / "task.toml").write_text(settings.format(image))
    for every in (image, ""):
        solve = env.program(["sh", "-c", script], tasks=str(source), name="solve", image=every)
        assert (await rewards(solve, ROW)).by_agent == {"agent": 1.0}
    listed = subprocess.run([find_client(), "ps", "-a"], capture_output=True, text=True, check=True)
    assert image not in listed.stdout
