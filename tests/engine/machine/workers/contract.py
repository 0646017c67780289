"""What every launcher promises: calls, errors, death and logs of a worker, wherever it runs."""

import asyncio
import os
import signal
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from marlaas.engine.errors import AdapterError, CallFailed, OutOfMemory, WorkerDied
from marlaas.engine.machine.workers.handle import NO_VARIABLES, Launcher, WorkerHandle

from .dummy import Dummy

FACTORY = "tests.engine.machine.workers.dummy:DummyWorker"
Spawn = Callable[..., Awaitable[WorkerHandle]]


@asynccontextmanager
async def spawning(launcher_at: Callable[[str], Launcher], folder: Path) -> AsyncIterator[Spawn]:
    """Starts dummy workers, on nodes that have a name or here; they are stopped at the end."""
    handles: list[WorkerHandle] = []

    async def start(
        cores: tuple[int, ...] = (),
        environment: Mapping[str, str] = NO_VARIABLES,
        nice: int = 0,
        node: str = "",
        **kwargs: Any,
    ) -> WorkerHandle:
        handle = await launcher_at(node).start(
            "dummy", FACTORY, kwargs, cores, log_path=folder / "dummy.log", environment=environment, nice=nice
        )
        handles.append(handle)
        return handle

    yield start
    for handle in handles:
        await handle.stop()


class LauncherContract:
    """A subclass has a fixture ``spawn`` that yields what ``spawning`` does."""

    beat = 0.02
    """Seconds between two looks at a worker that hangs."""

    later = False
    """What is printed takes another way than answers do, and may come after them."""

    async def logged(self, handle: WorkerHandle, text: str) -> bool:
        """Whether the log has a text that was printed before the last answer."""
        while self.later and text not in handle.log_path.read_text():
            await asyncio.sleep(0.01)
        return text in handle.log_path.read_text()

    async def test_calls_overlap_and_posts_run_without_an_answer(self, spawn: Spawn) -> None:
        handle = await spawn(greeting="good day")
        assert await handle.call("greet") == "good day"
        array = np.arange(100_000, dtype=np.int32).reshape(1000, 100)
        back = await handle.call("echo", array)
        assert back.dtype == array.dtype and np.array_equal(back, array)
        waits = [asyncio.ensure_future(handle.call("wait_for", name)) for name in "abc"]
        for name in "cab":
            await handle.call("let_go", name)
        assert await asyncio.gather(*waits) == ["a", "b", "c"]
        proxy = handle.proxy(Dummy, posted=("let_go", "refuse"))
        with pytest.raises(AttributeError):
            proxy.die  # type: ignore[attr-defined]  # noqa: B018
        await proxy.let_go("d")
        assert await asyncio.wait_for(proxy.wait_for("d"), 50) == "d", "it has begun before"
        await proxy.refuse()
        assert await handle.call("echo", 1) == 1
        assert await self.logged(handle, "It does not fit.")
        await handle.stop()
        handle.post("let_go", "a")  # nothing is posted to the dead

    async def test_a_caller_hears_what_comes_before_the_answer(self, spawn: Spawn) -> None:
        handle = await spawn()
        heard: list[int] = []
        before: list[int] = []
        second = asyncio.Event()

        def note(number: int) -> None:
            heard.append(number)
            if number == 2:
                second.set()
            raise LookupError("It is of no use here.")  # others are answered nevertheless

        errors: list[dict[str, object]] = []
        asyncio.get_running_loop().set_exception_handler(lambda loop, context: errors.append(context))
        cancelled = handle.call("count_to", 3, stream_to=before.append)
        counting = handle.call("count_to", 3, stream_to=note)
        await second.wait()
        assert not counting.done() and heard == [1, 2]
        cancelled.cancel()
        await handle.call("let_go", "go on")
        assert await counting == 3 and heard == [1, 2, 3]
        assert len(errors) == 3
        assert await handle.call("echo", 1) == 1 and before == [1, 2], "a cancelled caller hears no more"

    async def test_errors_arrive_as_themselves_or_with_a_traceback(self, spawn: Spawn) -> None:
        handle = await spawn()
        with pytest.raises(AdapterError) as refused:
            await handle.proxy(Dummy).refuse()
        assert (refused.value.message, refused.value.hint) == ("It does not fit.", "Bring another.")
        with pytest.raises(ValueError, match="Too long"):
            await handle.call("value_error")
        with pytest.raises(CallFailed, match="KeyError") as caught:
            await handle.call("bug")
        assert "raise KeyError" in "".join(caught.value.__notes__)
        assert await self.logged(handle, "raise KeyError")
        for method in ("unpicklable", "no_such_method"):
            with pytest.raises(CallFailed):
                await handle.call(method)
        assert await handle.call("echo", "still here") == "still here"

    async def test_death_fails_running_calls_and_later_ones(self, spawn: Spawn) -> None:
        handle = await spawn()
        wait = asyncio.ensure_future(handle.call("wait_for", "never"))
        with pytest.raises(WorkerDied, match="exit status 3: last words"):
            await handle.call("die")
        with pytest.raises(WorkerDied):
            await wait
        assert handle.died.is_set()
        with pytest.raises(WorkerDied, match="last words"):
            await handle.call("echo", 1)

    async def test_a_worker_without_memory_ends_and_says_so(self, spawn: Spawn) -> None:
        handle = await spawn()
        wait = asyncio.ensure_future(handle.call("wait_for", "never"))
        with pytest.raises(OutOfMemory, match=r"Worker dummy ran out of memory: There is no room\."):
            await handle.call("run_out")
        with pytest.raises(OutOfMemory):
            await wait

    async def test_stop_lets_the_process_tidy_up_and_end(self, spawn: Spawn, tmp_path: Path) -> None:
        left = tmp_path / "left"
        left.touch()
        handle = await spawn(greeting=str(left))
        wait = asyncio.ensure_future(handle.call("wait_for", "never"))
        os.kill(handle.pid, signal.SIGINT)
        assert await handle.call("echo", 1) == 1, "interrupts belong to the engine"
        await handle.stop(grace=30)
        with pytest.raises(WorkerDied, match=r"Worker dummy ended\.$"):
            await wait
        assert not handle.alive and not left.exists()
        await handle.stop()

    async def test_stop_ends_the_process_even_if_it_hangs(self, spawn: Spawn) -> None:
        handle = await spawn()
        os.kill(handle.pid, signal.SIGSTOP)
        await handle.stop(grace=0.05)
        with pytest.raises(ProcessLookupError):
            os.kill(handle.pid, 0)

    async def test_a_worker_has_its_cores_and_a_kill_is_noticed(self, spawn: Spawn) -> None:
        """Before anything is imported: libraries count the cores then."""
        core = min(os.sched_getaffinity(0))
        handle = await spawn(cores=(core,), nice=3, environment={"CUDA_VISIBLE_DEVICES": "GPU-7"})
        assert (await handle.call("environment"))["CUDA_VISIBLE_DEVICES"] == "GPU-7"
        affinity, threads, _ = await handle.call("where")
        assert (affinity, threads) == ({core}, "1")
        priority = min(19, os.getpriority(os.PRIO_PROCESS, 0) + 3)
        assert os.getpriority(os.PRIO_PROCESS, handle.pid) == priority
        os.kill(handle.pid, signal.SIGKILL)
        await asyncio.wait_for(handle.died.wait(), 50)

    async def test_why_a_worker_cannot_start_is_told(self, spawn: Spawn) -> None:
        with pytest.raises(AdapterError, match="No such adapter"):
            await spawn(fail="adapter")
        with pytest.raises(CallFailed, match="No module named 'a_module_that_is_not_there'"):
            await spawn(fail="import")
        with pytest.raises(WorkerDied, match=r"could not start by signal SIGILL .*: about to do") as caught:
            await spawn(fail="illegal")
        assert "another processor" in caught.value.hint

    async def test_a_worker_that_answers_nothing_is_ended(self, spawn: Spawn, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("marlaas.engine.machine.workers.handle.BEAT", self.beat)
        handle = await spawn()
        wait = asyncio.ensure_future(handle.call("wait_for", "never"))
        assert await handle.call("echo", 1) == 1
        os.kill(handle.pid, signal.SIGSTOP)
        with pytest.raises(WorkerDied, match=r"answered nothing for \d+ s and was ended"):
            await wait
        assert handle.died.is_set()

    async def test_a_worker_whose_threads_compute_answers_all_the_while(
        self, spawn: Spawn, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("marlaas.engine.machine.workers.handle.BEAT", self.beat)
        monkeypatch.setattr("marlaas.engine.machine.workers.handle.MISSED", 500)
        handle = await spawn()
        computing = asyncio.ensure_future(handle.call("compute_until", "enough"))
        for number in range(50):
            assert await handle.call("echo", number) == number
        assert not computing.done()
        await handle.call("let_go", "enough")
        assert await computing > 0 and handle.alive
