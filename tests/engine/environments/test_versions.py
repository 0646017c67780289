"""The version that a task gets, how long a replaced one may continue, and when one rests."""

from __future__ import annotations

import asyncio
import os
import signal
from pathlib import Path

import pytest

from marlaas.engine.environments import files as source, served_version as draining, service
from marlaas.engine.environments.health import MOST_FAILURES
from marlaas.engine.environments.pool import ProcessBudget
from marlaas.engine.environments.process.launch import Folders
from marlaas.engine.environments.served_version import LONGEST, SHORTEST, ServedVersion
from marlaas.engine.environments.service import EnvironmentService
from marlaas.engine.errors import ConfigError, EnvironmentFailure, EnvironmentMissing

from .conftest import ECHO, Slow, World, a_spec, echoing, under_way

WIDER = ECHO.replace('word: str = "hello"', "times: int")


async def reward(world: World, name: str, version: str | None) -> float:
    with await world.service.bind(name, version, {}) as lease:
        return (await world.service.play(lease, a_spec(word="x"), echoing)).rewards["agent"]


@pytest.mark.processes
async def test_a_pinned_version_outlives_its_plugin_and_its_engine(world: World) -> None:
    await world.serve(echo=ECHO)
    with await world.service.bind("echo") as lease:
        first, code = lease.environment_version, lease.code
    (world.folder / "echo.py").unlink()
    await world.until("removed", "echo")
    assert await reward(world, "echo", first) == 1.0
    await world.service.stop()
    world.service = EnvironmentService([world.folder], world.scratch, world.hear)
    await world.service.start()
    assert world.service.infos() == ()
    assert world.service.full_name("echo", first) == "echo/echo"
    assert world.service.validate("echo", {"word": 3}, first) == {"word": 3}, "its process will tell"
    assert await reward(world, "echo", first) == await reward(world, "echo/echo", first) == 1.0
    with await world.service.bind("echo", first) as lease:
        assert lease.code == code, "also of a version whose plugin has gone"
    with pytest.raises(ConfigError, match="'word' of echo must be a text"):
        world.service.validate("echo", {"word": 3}, first)
    with pytest.raises(EnvironmentMissing, match="There is no environment 'echo'"):
        await world.service.bind("echo")
    assert (await world.edit("echo", ECHO)).version == first


@pytest.mark.processes
async def test_parameters_are_checked_by_the_version_that_plays(world: World) -> None:
    await world.serve(echo=ECHO)
    first = world.service.resolve("echo").version
    second = (await world.edit("echo", WIDER.replace("ask(word)", "ask('x')").replace("== word", "== 'x'"))).version
    with await world.service.bind("echo", first, {"word": "x"}) as lease:
        assert lease.config == {"word": "x"} and lease.by_version
    with await world.service.bind("echo", None, {"times": 2}) as lease:
        assert (lease.environment_version, lease.config) == (second, {"times": 2})
    for version, config in ((first, {"times": 2}), (second, {"word": "x"}), (None, {})):
        with pytest.raises(ConfigError):
            await world.service.bind("echo", version, config)
    with await world.service.bind("echo") as lease:
        assert lease.serving.leases == 1, "a lease that was refused is released"


@pytest.mark.processes
async def test_snapshots_that_nobody_needs_are_removed(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(service, "TIDY_EVERY", 1)
    monkeypatch.setattr(source, "SPARE", 1)
    needed: set[str] = set()
    world.service = EnvironmentService([world.folder], world.scratch, world.hear, needed=lambda: needed)
    await world.serve(echo=ECHO)
    versions = [(await world.until("loaded", "echo")).version]
    needed.add(versions[0])
    for number in range(3):
        world.save("echo.py", ECHO.replace("reply.text == word", f"0.{number}"))
        versions.append((await world.until("loaded", "echo")).version)
    await world.service.scan()
    kept = {entry.name for entry in (world.scratch / "snapshots").iterdir()}
    assert {versions[0], versions[-1]} <= kept and versions[1] not in kept
    assert await reward(world, "echo", versions[0]) == 1.0
    with pytest.raises(EnvironmentMissing, match="no version"):
        await world.service.bind("echo", versions[1])
    assert (await world.edit("echo", ECHO.replace("reply.text == word", "0.0"))).version == versions[1], (
        "an edit that is taken back is proven anew"
    )
    assert await reward(world, "echo", None) == 0.0


WORSE = ECHO.replace("reply.text == word", "0.25")


@pytest.fixture
async def served(world: World) -> World:
    await world.serve(echo=ECHO)
    return world


@pytest.mark.parametrize(
    ("seconds", "grace"), [([], SHORTEST), ([1.0] * 50, SHORTEST), ([20.0] * 50, 60.0), ([1e300], LONGEST)]
)
async def test_the_grace_follows_from_what_episodes_take(seconds: list[float], grace: float) -> None:
    folders = Folders(Path("work"), Path("log"))
    version = ServedVersion("v", Path("p.py"), folders, lambda *_: None, ProcessBudget())
    version._seconds.extend(seconds)
    version.hold(by_version=False)
    version.retire()
    assert version.grace == grace
    version.promote()


@pytest.mark.processes
async def test_after_its_grace_a_replaced_version_is_cut_off(served: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """A group that binds the version by its name then has it to the end."""
    monkeypatch.setattr(draining, "SHORTEST", 0.0)
    lease, model = await served.service.bind("echo"), Slow()
    episode = await under_way(served, lease, Slow())
    assert not lease.cut
    await served.edit("echo", WORSE)
    outcome = await episode
    assert (outcome.status, outcome.rewards) == ("cancelled", {}) and lease.cut
    assert outcome.failure is not None and "newer version" in outcome.failure.message
    late = await served.service.play(lease, a_spec(), echoing)
    assert late.status == "cancelled", "nothing brings the process back for this group"
    with await served.service.bind("echo", lease.environment_version) as other:
        assert lease.cut and not other.cut, "one of its episodes is lost, so the group is no whole one"
        held = await under_way(served, other, model)
        await served.edit("echo", WORSE + "# edited again")
        model.go.set()
        assert (await held).rewards == {"agent": 1.0} and not other.cut and other.ends == ""
    lease.release()
    await lease.serving._playing.settle()
    assert not lease.serving.pids
    while len(served.pids()) > 1:  # the second version's process was killed, but may not be gone yet
        await asyncio.sleep(0)
    assert (await served.play("echo")).rewards == {"agent": 0.25}


@pytest.mark.processes
async def test_an_edit_that_is_taken_back_ends_the_grace(served: World) -> None:
    model = Slow()
    lease = await served.service.bind("echo")
    episode = await under_way(served, lease, model)
    assert lease.ends == ""
    await served.edit("echo", WORSE)
    assert lease.ends == (
        f"waits for episodes on version {lease.environment_version[:8]} of echo/echo, which was replaced;"
        f" what takes longer than {SHORTEST:.0f} s from then on is cut off"
    )
    assert (await served.edit("echo", ECHO)).version == lease.environment_version
    lease.serving.expire()  # as a timer would that was not stopped
    model.go.set()
    assert (await episode).rewards == {"agent": 1.0} and not lease.cut
    lease.release()
    assert lease.serving.pids


@pytest.mark.processes
async def test_a_group_keeps_its_version_when_its_process_dies(served: World) -> None:
    lease = await served.service.bind("echo")
    first = await served.service.play(lease, a_spec(word="x"), echoing)
    await served.edit("echo", WORSE)
    os.kill(lease.serving.pids[0], signal.SIGKILL)
    await served.until("restarted", "echo")
    second = await served.service.play(lease, a_spec(word="x"), echoing)
    assert first.rewards == second.rewards == {"agent": 1.0}, "the newer one would pay 0.25"
    lease.release()
    await lease.serving._playing.settle()


DIVIDES = """
from marlaas.plugins import env

@env
async def divides(ep, by: int = 1, fair: bool = True):
    await ep.ask("x")
    if not fair and ep.index < 5:
        raise KeyError("a bad row")
    return 1 / by
"""


async def plays(world: World, counts: bool = True, indices: range = range(MOST_FAILURES), **config: object) -> None:
    """An episode on each of some instances, as a task would."""
    with await world.service.bind("divides", None, config) as lease:
        for index in indices:
            spec = a_spec(index=index, **lease.config)
            await world.service.play(lease, spec, echoing, counts)


@pytest.fixture
async def dividing(world: World) -> World:
    await world.serve(divides=DIVIDES, echo=ECHO)
    return world


@pytest.mark.processes
async def test_parameters_that_only_fail_rest_until_something_changes(dividing: World) -> None:
    service = dividing.service
    for _ in range(2):
        await plays(dividing, fair=False)  # a bad row among good ones
    await plays(dividing, counts=False, by=0)  # junk that was answered on purpose
    assert service.resolve("divides").state == "ready"
    await plays(dividing, by=0)
    told = await dividing.until("quarantined", "divides")
    assert told.failure is not None and (told.failure.file, told.failure.line) == ("divides.py", 9)
    assert "all of 8 instances" in told.failure.message and "ZeroDivisionError" in told.failure.message
    for name in ("divides", "divides/divides"):
        with pytest.raises(EnvironmentFailure, match=r"divides\.py:9: .* rests for 60 s"):
            service.validate(name, {"by": 0})
    with await service.bind("divides", None, {"by": 0}) as lease:  # whoever checks it or plays it by hand may
        assert lease.rest == told.failure
    info = service.resolve("divides")
    assert (info.state, info.failure) == ("failing", told.failure)
    assert service.resolve("echo").state == "ready"
    await plays(dividing, by=2)
    assert service.validate("divides", {"by": 2}) == {"by": 2, "fair": True}, "others go on"
    dividing.save("divides.py", DIVIDES.replace("1 / by", "1 / (by + 1)"))
    while service.resolve("divides").state != "ready":
        await dividing.until("loaded", "divides")
    await plays(dividing, by=0)
    assert service.validate("divides", {"by": 0})


@pytest.mark.processes
async def test_a_success_after_a_rest_is_told(dividing: World) -> None:
    mended = dividing.folder.parent / "mended"
    await dividing.until("loaded", "divides")
    await dividing.edit(
        "divides", DIVIDES.replace("1 / by", f"1 / (by + __import__('os').path.exists({str(mended)!r}))")
    )
    with await dividing.service.bind("divides") as lease:
        serving = lease.serving
    await plays(dividing, by=0)
    serving.health.clock = lambda: 1e12  # the rest is over, and what was wrong outside of the plugin is mended
    mended.touch()
    await plays(dividing, by=0)
    await dividing.until("recovered", "divides")
    assert dividing.service.resolve("divides").state == "ready"


@pytest.mark.processes
async def test_another_engine_remembers_what_only_failed(dividing: World) -> None:
    service = dividing.service
    await plays(dividing, by=0)
    await dividing.until("quarantined", "divides")
    version = service.resolve("divides").version
    earlier = {("divides", version): service.standstills("divides", version)}
    await service.stop()

    again = World(dividing.folder, dividing.scratch)
    again.service = EnvironmentService([again.folder], again.scratch, again.hear, earlier=earlier)
    await again.service.start()
    try:
        info = again.service.resolve("divides")
        assert info.state == "failing" and info.failure is not None and info.failure.line == 9
        assert info.failure.message == "ZeroDivisionError: division by zero, on all of 8 instances"
        assert again.service.validate("divides", {"by": 0}), "it is tried at once"
        await plays(again, by=2)
        assert again.service.resolve("divides").state == "failing", "other parameters prove nothing"
        assert again.service.standstills("divides", version) == earlier["divides", version]
        await plays(again, by=0)
        await again.until("quarantined", "divides")
        await again.service.reload("divides")
        assert again.service.resolve("divides").state == "ready", "whoever asks for that begins anew"
        assert again.service.standstills("divides", version) == []
    finally:
        await again.service.stop()
