"""Who is in memory: the most recently used, within slots and bytes; nobody is lost where the disk takes nothing."""

from pathlib import Path

import pytest
import torch
from hypothesis import given, strategies as st

from marlaas.engine.errors import AdapterError
from marlaas.engine.training.memory import adapter_cache
from marlaas.engine.training.memory.adapter_cache import AdapterCache, Pages
from marlaas.engine.training.memory.policy_memory import PolicyMemory, TrainingState

from .test_pages import policy


class Watched(Pages):
    """Keeps all in memory; ``names`` are those that are paged out, ``full`` makes the next refuse."""

    def __init__(self, scratch: Path) -> None:
        super().__init__(scratch, host=1 << 30)
        self.full = False

    @property
    def names(self) -> set[str]:
        return set(self._pages)

    def put(self, policy: str, state: TrainingState) -> None:
        if self.full:
            raise OSError(28, "No space left on device")
        super().put(policy, state)


@pytest.fixture
def pages(tmp_path: Path) -> Watched:
    return Watched(tmp_path)


def test_the_least_recently_used_makes_room(pages: Watched) -> None:
    cache = AdapterCache(pages, slots=2)
    for name in "abc":
        cache.add(name, policy())
    assert pages.names == {"a"}
    cache.use("b")
    cache.use("a")
    assert pages.names == {"c"}
    cache.use("c", "a")
    assert pages.names == {"b"}
    cache.drop("c")
    assert pages.names == {"b"} and len(cache.use("b")) == 1
    assert pages.names == set()


def test_bytes_limit_as_slots_do(pages: Watched) -> None:
    size = policy().size
    cache = AdapterCache(pages, room=2 * size)
    for name in "abc":
        cache.add(name, policy())
    assert pages.names == {"a"}
    assert cache.fit("ab") and not cache.fit("abc")
    narrow = AdapterCache(pages, room=size - 1)
    narrow.add("x", policy())
    assert narrow.fit("x"), "one alone is always taken"


def test_who_is_not_open_is_named(pages: Watched) -> None:
    cache = AdapterCache(pages)
    cache.add("a", policy())
    cache.drop("a")
    with pytest.raises(AdapterError, match="Policy a is not open in this trainer"):
        cache.use("a")


def test_where_the_disk_takes_nothing_all_stay_in_memory(pages: Watched) -> None:
    cache = AdapterCache(pages, slots=1)
    pages.full = True
    kept = [policy(number) for number in range(3)]
    for number, memory in enumerate(kept):
        cache.add(str(number), memory)
    assert [cache.use(str(number))[0] for number in range(3)] == kept
    pages.full = False
    cache.use("0")
    assert pages.names == {"1", "2"}


def test_a_policy_that_cannot_come_back_is_closed_alone(tmp_path: Path) -> None:
    cache = AdapterCache(Pages(tmp_path), slots=1)
    for name in "abc":
        cache.add(name, policy())
    for path in tmp_path.glob("marlaas-pages-*/0"):  # the first to be paged out
        path.write_bytes(b"")
    with pytest.raises(AdapterError, match=r"Policy a was paged out .* damaged"):
        cache.use("a")
    with pytest.raises(AdapterError, match="Policy a is not open"):
        cache.use("a")
    assert cache.use("b")[0].version == cache.use("c")[0].version == 7


def test_a_device_without_room_for_who_comes_back_loses_nobody(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:

    def refuse(state: TrainingState, device: str) -> PolicyMemory:
        raise torch.OutOfMemoryError("CUDA out of memory.")

    cache = AdapterCache(Pages(tmp_path), slots=2)
    for number, name in enumerate("abc"):
        cache.add(name, policy(number))
    with monkeypatch.context() as patch:
        patch.setattr(adapter_cache, "to_device", refuse)
        with pytest.raises(torch.OutOfMemoryError):
            cache.use("a")
    assert torch.equal(cache.use("a")[0].gradient, policy(0).gradient)
    assert torch.equal(cache.use("b")[0].gradient, policy(1).gradient)


@given(st.integers(1, 4), st.lists(st.integers(0, 5), max_size=30))
def test_whoever_is_asked_for_is_there_with_what_it_had(
    tmp_path_factory: pytest.TempPathFactory, slots: int, asked: list[int]
) -> None:
    pages = Watched(tmp_path_factory.getbasetemp())
    cache = AdapterCache(pages, slots=slots)
    counts = dict.fromkeys(range(6), 0)
    for number in counts:
        cache.add(str(number), policy(number))
    for number in asked:
        (memory,) = cache.use(str(number))
        memory.tokens += 1
        counts[number] += 1
        assert len(pages.names) == 6 - slots
    for number, count in counts.items():
        (memory,) = cache.use(str(number))
        assert memory.tokens == 12 + count
        assert torch.equal(memory.gradient, policy(number).gradient)
