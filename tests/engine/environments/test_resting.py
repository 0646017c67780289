"""An environment of which only errors come rests, with those parameters; nobody else is concerned."""

from __future__ import annotations

import pytest

from marlaas.engine.environments.health import MOST_FAILURES
from marlaas.engine.environments.service import EnvironmentService
from marlaas.engine.errors import EnvironmentFailure

from .conftest import ECHO, World, a_spec, echoing

pytestmark = pytest.mark.processes
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
async def served(world: World) -> World:
    world.save("divides.py", DIVIDES)
    world.save("echo.py", ECHO)
    await world.service.start()
    return world


async def test_parameters_that_only_fail_rest_until_something_changes(served: World) -> None:
    service = served.service
    await plays(served, by=0)
    told = await served.until("quarantined", "divides")
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
    await plays(served, by=2)
    assert service.validate("divides", {"by": 2}) == {"by": 2, "fair": True}, "others go on"
    served.save("divides.py", DIVIDES.replace("1 / by", "1 / (by + 1)"))
    while service.resolve("divides").state != "ready":
        await served.until("loaded", "divides")
    await plays(served, by=0)
    assert service.validate("divides", {"by": 0})


async def test_a_bad_row_among_good_ones_is_no_reason_to_rest(served: World) -> None:
    await plays(served, fair=False)
    await plays(served, fair=False)
    assert served.service.resolve("divides").state == "ready"


async def test_junk_that_was_answered_on_purpose_does_not_count(served: World) -> None:
    await plays(served, counts=False, by=0)
    assert served.service.resolve("divides").state == "ready"


async def test_a_success_after_a_rest_is_told(served: World) -> None:
    mended = served.folder.parent / "mended"
    await served.until("loaded", "divides")
    served.save("divides.py", DIVIDES.replace("1 / by", f"1 / (by + __import__('os').path.exists({str(mended)!r}))"))
    await served.until("loaded", "divides")
    with await served.service.bind("divides") as lease:
        serving = lease.serving
    await plays(served, by=0)
    serving.health.clock = lambda: 1e12  # the rest is over, and what was wrong outside of the plugin is mended
    mended.touch()
    await plays(served, by=0)
    await served.until("recovered", "divides")
    assert served.service.resolve("divides").state == "ready"


async def test_another_engine_remembers_what_only_failed(served: World) -> None:
    service = served.service
    await plays(served, by=0)
    await served.until("quarantined", "divides")
    version = service.resolve("divides").version
    earlier = {("divides", version): service.standstills("divides", version)}
    await service.stop()

    again = World(served.folder, served.scratch)
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
