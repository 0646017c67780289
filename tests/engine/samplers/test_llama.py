"""llama.cpp keeps the sampler contract; its worker process, its library, and what it does without memory."""

import asyncio
import json
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from marlaas.engine.adapters.statefile import checksum, read_state
from marlaas.engine.devices.software import LlamaBuild
from marlaas.engine.errors import AdapterError, CallFailed, ConfigError
from marlaas.engine.machine.workers.handle import LocalLauncher
from marlaas.engine.models.find import BaseModel
from marlaas.engine.samplers.batching import context as batching_context
from marlaas.engine.samplers.batching.context import DecodeFailed
from marlaas.engine.samplers.llama import native
from marlaas.engine.samplers.llama.context import LlamaContext
from marlaas.engine.samplers.llama.model import LlamaSampler, base_file, load_model, open_base
from marlaas.engine.samplers.options import Wishes
from marlaas.engine.samplers.protocol import NewTokens, Sampler
from tests.engine.rollout.contract.asking import LONG, State, alone, request, same, until_sampled
from tests.engine.rollout.contract.repeatable import RepeatableContract
from tests.engine.rollout.contract.whole import PositionalContract
from tests.engine.rollout.random_base import write_adapter, write_base
from tests.seldom import often


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Files that llama.cpp reads the base from, each written once."""
    return str(tmp_path_factory.mktemp("cache"))


KINDS = ["fast", "exact, one by one", "large", "large, quantised", "large, one by one", "quantised"]
"""Of passes, besides the usual one, which is exact."""


@pytest.fixture
async def llama(
    kind: str, base: BaseModel, state: State, cache: str, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[Sampler]:
    if "large" in kind:
        monkeypatch.setattr(batching_context, "CACHE", 0)
    weights, mixes = "q8_0" if "quantised" in kind else "f32", "one by one" not in kind
    llama = LlamaSampler(
        str(base.path), cache, sequences=64, context=2048, exact="exact" in kind, weights=weights, mixes=mixes
    )
    for number in (0, 1):
        await llama.load(f"v{number}", str(state(number)))
    yield llama
    await llama.close()


@pytest.mark.parametrize("kind", often(["exact"], ["exact", *KINDS]))
class TestLlamaSampler(PositionalContract):
    """The other kinds keep all of it in ``make test-slow``; two of them, between which each trait is met, keep
    the part that depends on the kind every day."""

    @pytest.fixture
    async def sampler(self, llama: Sampler) -> Sampler:
        return llama


@pytest.mark.parametrize("kind", often(["fast", "large, one by one"], KINDS))
class TestOtherKinds(RepeatableContract):
    @pytest.fixture
    async def sampler(self, llama: Sampler) -> Sampler:
        return llama


@pytest.fixture
async def sampler(base: BaseModel, state: State, cache: str) -> AsyncIterator[LlamaSampler]:
    llama = LlamaSampler(str(base.path), cache, sequences=16, context=2048)
    await llama.load("v0", str(state(0)))
    yield llama
    await llama.close()


async def test_limits_are_what_was_allocated(sampler: LlamaSampler, base: BaseModel, cache: str) -> None:
    limits = await sampler.limits()
    assert (limits.sequences, limits.context) == (16, 2048)
    crowded = LlamaSampler(str(base.path), cache, sequences=1000, context=100)
    assert (await crowded.limits()).sequences == 254 and (await crowded.limits()).context == 100
    await crowded.close()


async def test_a_turn_under_another_version_computes_everything_anew(sampler: LlamaSampler, state: State) -> None:
    await sampler.load("v1", str(state(1)))
    first = await sampler.generate(request("a", max_tokens=6))
    tokens = request("a").tokens.tolist() + first.tokens.tolist() + [9]
    switched = await sampler.generate(request("a", tokens, version="v1"))
    assert same(switched, await alone(sampler, request("b", tokens, version="v1")))


async def test_a_failed_decode_hits_nobody_else(sampler: LlamaSampler, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = await alone(sampler, request("b", max_tokens=100))
    decode = LlamaContext.decode

    def fragile(self: LlamaContext, tokens: Any, *rest: Any) -> Any:
        if len(tokens) == 13:
            raise DecodeFailed("llama.cpp failed to decode.")
        return decode(self, tokens, *rest)

    monkeypatch.setattr(LlamaContext, "decode", fragile)
    running = asyncio.create_task(sampler.generate(request("a", max_tokens=100)))
    await until_sampled(sampler, 2)
    with pytest.raises(CallFailed):
        await sampler.generate(request("bad", [1] * 13))
    assert same(await running, expected)
    assert len((await sampler.generate(request("bad", [1] * 12))).tokens) == 20


async def test_memory_of_retired_versions_is_given_back(
    sampler: LlamaSampler, state: State, monkeypatch: pytest.MonkeyPatch
) -> None:
    freed: list[int] = []
    free = LlamaContext.free_adapter

    def counted(self: LlamaContext, adapter: int) -> None:
        freed.append(adapter)
        free(self, adapter)

    monkeypatch.setattr(LlamaContext, "free_adapter", counted)
    for number in range(1, 4):
        await sampler.load(f"v{number}", str(state(number % 3)))
        running = asyncio.create_task(sampler.generate(request("a", version=f"v{number}", max_tokens=LONG)))
        await until_sampled(sampler, 2)
        await sampler.retire(f"v{number}")
        assert len(freed) == number - 1
        await sampler.release("a")
        assert (await running).finish == "abort" and len(freed) == number


async def test_an_adapter_of_another_base_is_refused(sampler: LlamaSampler, tmp_path: Path) -> None:
    other = write_base(tmp_path / "other", seed=5)
    with pytest.raises(AdapterError, match="trained on the base"):
        await sampler.load("other", str(write_adapter(tmp_path / "adapter", other, 0)))


async def test_closing_fails_what_is_being_sampled(base: BaseModel, state: State, cache: str) -> None:
    llama = LlamaSampler(str(base.path), cache, sequences=2, context=2000)
    await llama.load("v0", str(state(0)))
    running = asyncio.create_task(llama.generate(request("a", max_tokens=1900)))
    await until_sampled(llama, 2)
    await llama.close()
    with pytest.raises(CallFailed, match="closing"):
        await running


FACTORY = "marlaas.engine.samplers.llama.model:LlamaSampler"


@pytest.mark.processes
@pytest.mark.torch
async def test_a_sampler_in_a_process_of_its_own(base: BaseModel, state: State, tmp_path: Path) -> None:
    kwargs = {"base": str(base.path), "cache": str(tmp_path / "cache"), "sequences": 16, "context": 256}
    handle = await LocalLauncher().start("sampler", FACTORY, kwargs, (0,), log_path=tmp_path / "sampler.log")
    try:
        sampler = handle.proxy(Sampler)
        assert await sampler.load("v0", str(state(0))) == checksum(read_state(state(0)).adapter)
        first = await alone(sampler, request("a"))
        many = await asyncio.gather(*[alone(sampler, request(f"{n}")) for n in range(30)])
        assert all(same(first, each) for each in many)
        heard: list[NewTokens] = []
        wished = request("b").wishing(Wishes(likeliest=3, prompt=True))
        streamed = await sampler.generate(wished, stream_to=heard.append)
        assert same(streamed, first) and streamed.extras is not None and streamed.extras.prompt_likeliest is not None
        assert np.concatenate([each.tokens for each in heard]).tolist() == first.tokens.tolist()
        with pytest.raises(AdapterError, match="never loaded"):
            await sampler.generate(request("a", version="v1"))
    finally:
        await handle.stop()


CHILD = """
import asyncio, json, resource, sys
import numpy as np
from marlaas.engine.errors import BaseModelError
from marlaas.engine.samplers.llama.native import llama
from marlaas.engine.samplers.llama.model import LlamaSampler
from marlaas.engine.samplers.protocol import SampleRequest

base, cache, state, room = json.loads(sys.argv[1])
llama()
LlamaSampler(base, cache, sequences=2, context=256)  # the file is written, libraries and threads have their room
taken = next(int(line.split()[1]) << 10 for line in open("/proc/self/status") if line.startswith("VmSize"))
resource.setrlimit(resource.RLIMIT_AS, (taken + (room << 20),) * 2)

async def main():
    sampler = LlamaSampler(base, cache, sequences=254, context=2048, exact=True, first=0)
    await sampler.load("v0", state)
    result = await sampler.generate(SampleRequest("a", "v0", np.array([3, 1, 4], np.int32), 5, 1.0, (), 7))
    limits = await sampler.limits()
    print(json.dumps([limits.sequences, limits.context, limits.note, len(result.tokens)]))

try:
    asyncio.run(main())
except BaseModelError as error:
    print(json.dumps([error.message, error.hint]))
"""


def run(base: BaseModel, state: Path, folder: Path, room: int) -> list[object]:
    """Sample with 254 conversations of 2,048 tokens, 268 MB of memory, in a process that may take ``room`` MB more."""
    argument = json.dumps([str(base.path), str(folder / "cache"), str(state), room])
    done = subprocess.run([sys.executable, "-P", "-c", CHILD, argument], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    assert isinstance(result, list)
    return result


@pytest.mark.processes
@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="the kernel's own count")
@pytest.mark.torch
def test_a_sampler_without_memory_does_with_less_or_says_so(base: BaseModel, state: State, tmp_path: Path) -> None:
    sequences, context, note, sampled = run(base, state(0), tmp_path, room=270)
    assert isinstance(sequences, int) and 8 <= sequences < 254 and (context, sampled) == (2048, 5)
    assert isinstance(note, str) and f"{sequences} conversations of 2048 tokens instead of 254" in note
    assert "could not make a context of 256 x 2048 tokens" in note
    message, hint = run(base, state(0), tmp_path, room=2)
    assert isinstance(message, str) and message.startswith("llama.cpp could not make a context of 10 x 2048 tokens")
    assert hint == "Lower the number of sequences or their length."


def test_a_card_that_is_not_there_is_named(base: BaseModel, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"llama\.cpp sees no card CUDA7"):
        load_model(base_file(base, tmp_path), ("CUDA7",))
    with pytest.raises(ConfigError, match="sees no card CUDA7"):
        open_base(base_file(base, tmp_path), 4, 256, devices=("CUDA7",), layers=(3, 1))


@pytest.mark.parametrize(
    ("build", "words", "installs"),
    [
        (None, r"llama\.cpp could not be loaded: .*llama_cpp", True),
        (LlamaBuild("compiling", 130.0, log="/x/log"), "could not be loaded: it is still being compiled, 2 min", False),
        (LlamaBuild("failed", 1.0, 9.0, "no compiler"), "it could not be compiled: no compiler", False),
    ],
)
def test_a_library_that_cannot_be_loaded_is_named(
    build: LlamaBuild | None, words: str, installs: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also if the set-up has not compiled it yet."""
    monkeypatch.setitem(sys.modules, "llama_cpp.llama_cpp", None)
    if build is not None:
        monkeypatch.setattr(native, "llama_build", lambda: build)
    with pytest.raises(ConfigError, match=words) as caught:
        native.llama.__wrapped__()
    assert ("marlaas[cpu]" in caught.value.hint) == installs
