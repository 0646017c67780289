"""What every launcher promises: calls, errors, death and logs of a worker, wherever it runs."""

import asyncio
import os
import signal
from collections.abc import Awaitable, Callable
from pathlib import Path

import numpy as np
import pytest

from marlaas.engine.errors import AdapterError, CallFailed, OutOfMemory, WorkerDied
from marlaas.engine.machine.workers.handle import WorkerHandle

from .dummy import Dummy, Named

Spawn = Callable[..., Awaitable[WorkerHandle]]


class LauncherContract:
    """A subclass has a fixture ``spawn``, as that of ``conftest``."""

    beat = 0.02
    """Seconds between two looks at a worker that hangs."""

    async def logged(self, handle: WorkerHandle, text: str) -> bool:
        """Whether the log has a text that was printed before the last answer."""
        return text in handle.log_path.read_text()

    async def test_calls_reach_the_object_with_its_arguments(self, spawn: Spawn) -> None:
        handle = await spawn(greeting="good day")
        assert await handle.call("greet") == "good day"

    async def test_arrays_come_back_as_they_went(self, spawn: Spawn) -> None:
        handle = await spawn()
        array = np.arange(100_000, dtype=np.int32).reshape(1000, 100)
        back = await handle.call("echo", array)
        assert back.dtype == array.dtype and np.array_equal(back, array)

    async def test_calls_overlap(self, spawn: Spawn) -> None:
        handle = await spawn()
        waits = [asyncio.ensure_future(handle.call("wait_for", name)) for name in "abc"]
        for name in "cab":
            await handle.call("let_go", name)
        assert await asyncio.gather(*waits) == ["a", "b", "c"]

    async def test_what_is_posted_runs_first_without_an_answer(self, spawn: Spawn) -> None:
        handle = await spawn()
        proxy = handle.proxy(Dummy, posted=("let_go", "refuse"))
        await proxy.let_go("a")
        assert await asyncio.wait_for(proxy.wait_for("a"), 50) == "a"
        await proxy.refuse()
        assert await handle.call("echo", 1) == 1
        assert await self.logged(handle, "It does not fit.")

    async def test_nothing_is_posted_to_the_dead(self, spawn: Spawn) -> None:
        handle = await spawn()
        await handle.stop()
        handle.post("let_go", "a")

    async def test_answers_of_cancelled_calls_are_dropped(self, spawn: Spawn) -> None:
        handle = await spawn()
        wait = asyncio.ensure_future(handle.call("wait_for", "a"))
        assert await handle.call("echo", 1) == 1
        wait.cancel()
        with pytest.raises(asyncio.CancelledError):
            await wait
        await handle.call("let_go", "a")
        assert await handle.call("echo", 2) == 2

    async def test_a_caller_hears_what_is_said_before_the_answer(self, spawn: Spawn) -> None:
        handle = await spawn()
        said: list[int] = []
        second = asyncio.Event()

        def note(number: int) -> None:
            said.append(number)
            if number == 2:
                second.set()
            raise LookupError("It is of no use here.")  # others are answered nevertheless

        told: list[dict[str, object]] = []
        asyncio.get_running_loop().set_exception_handler(lambda loop, context: told.append(context))
        counting = handle.call("count_to", 3, stream_to=note)
        await second.wait()
        assert not counting.done() and said == [1, 2]
        await handle.call("let_go", "go on")
        assert await counting == 3 and said == [1, 2, 3]
        assert len(told) == 3

    async def test_a_cancelled_caller_hears_no_more(self, spawn: Spawn) -> None:
        handle = await spawn()
        said: list[int] = []
        first = asyncio.Event()

        def note(number: int) -> None:
            said.append(number)
            first.set()

        counting = handle.call("count_to", 2, stream_to=note)
        await first.wait()
        counting.cancel()
        await handle.call("let_go", "go on")
        assert await handle.call("echo", 1) == 1
        assert said == [1]

    async def test_the_proxy_has_the_protocols_methods_only(self, spawn: Spawn) -> None:
        handle = await spawn()
        proxy = handle.proxy(Dummy)
        assert await proxy.echo(np.array([1], np.int32)) == np.array([1], np.int32)
        with pytest.raises(AdapterError):
            await proxy.refuse()
        with pytest.raises(AttributeError):
            proxy.die  # type: ignore[attr-defined]  # noqa: B018

    async def test_each_part_is_called_through_its_own_proxy(self, spawn: Spawn) -> None:
        handle = await spawn(greeting="whole")
        proxies = [handle.proxy(Named, part=part) for part in ("left", "right", "")]
        assert [await proxy.greet() for proxy in proxies] == ["left", "right", "whole"]
        left, posting = handle.proxy(Dummy, part="left"), handle.proxy(Dummy, posted=("let_go",), part="left")
        with pytest.raises(CallFailed, match="'Part' object has no attribute 'refuse'"):
            await left.refuse()
        await posting.let_go("a")  # which the part does not have, either
        assert await handle.call("echo", 1) == 1
        assert await self.logged(handle, "'Part' object has no attribute 'let_go'")

    async def test_known_errors_arrive_as_themselves(self, spawn: Spawn) -> None:
        handle = await spawn()
        with pytest.raises(AdapterError) as caught:
            await handle.call("refuse")
        assert (caught.value.message, caught.value.hint) == ("It does not fit.", "Bring another.")
        with pytest.raises(ValueError, match="Too long"):
            await handle.call("value_error")

    async def test_other_errors_become_call_failed_with_the_traceback(self, spawn: Spawn) -> None:
        handle = await spawn()
        with pytest.raises(CallFailed, match="KeyError") as caught:
            await handle.call("bug")
        assert "raise KeyError" in "".join(caught.value.__notes__)
        assert await self.logged(handle, "raise KeyError")
        with pytest.raises(CallFailed):
            await handle.call("unpicklable")
        with pytest.raises(CallFailed):
            await handle.call("no_such_method")
        assert await handle.call("echo", "still here") == "still here"

    async def test_death_fails_what_was_under_way_and_what_comes_later(self, spawn: Spawn) -> None:
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

    async def test_a_kill_is_noticed_without_any_call(self, spawn: Spawn) -> None:
        handle = await spawn()
        os.kill(handle.pid, signal.SIGKILL)
        await asyncio.wait_for(handle.died.wait(), 50)

    async def test_interrupts_belong_to_the_engine(self, spawn: Spawn) -> None:
        handle = await spawn()
        os.kill(handle.pid, signal.SIGINT)
        assert await handle.call("echo", 1) == 1

    async def test_stop_lets_the_process_end_by_itself(self, spawn: Spawn) -> None:
        handle = await spawn()
        wait = asyncio.ensure_future(handle.call("wait_for", "never"))
        await handle.call("echo", 1)
        await handle.stop(grace=30)
        with pytest.raises(WorkerDied, match=r"Worker dummy ended\.$"):
            await wait
        assert not handle.alive
        await handle.stop()

    async def test_a_worker_tidies_up_when_it_is_stopped(self, spawn: Spawn, tmp_path: Path) -> None:
        left = tmp_path / "left"
        left.touch()
        handle = await spawn(greeting=str(left))
        await handle.stop(grace=30)
        assert not left.exists()

    async def test_stop_ends_the_process_even_if_it_hangs(self, spawn: Spawn) -> None:
        handle = await spawn()
        os.kill(handle.pid, signal.SIGSTOP)
        await handle.stop(grace=0.05)
        with pytest.raises(ProcessLookupError):
            os.kill(handle.pid, 0)

    async def test_a_worker_is_pinned_before_anything_is_imported(self, spawn: Spawn) -> None:
        core = min(os.sched_getaffinity(0))
        handle = await spawn(cores=(core,))
        affinity, threads, _ = await handle.call("where")
        assert (affinity, threads) == ({core}, "1")

    async def test_a_worker_lets_others_go_first_where_it_is_told_to(self, spawn: Spawn) -> None:
        own = os.getpriority(os.PRIO_PROCESS, 0)
        for nice in (0, 3):
            handle = await spawn(nice=nice)
            assert os.getpriority(os.PRIO_PROCESS, handle.pid) == min(19, own + nice)

    async def test_a_refusing_constructor_is_raised_as_itself(self, spawn: Spawn) -> None:
        with pytest.raises(AdapterError, match="No such adapter"):
            await spawn(fail="adapter")

    async def test_a_missing_module_is_named(self, spawn: Spawn) -> None:
        with pytest.raises(CallFailed, match="No module named 'a_module_that_is_not_there'"):
            await spawn(fail="import")

    async def test_an_illegal_instruction_is_explained(self, spawn: Spawn) -> None:
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
