import pytest

from marlaas.engine.fleet.worker_specs import COLOCATED, WorkerSpec, shared_spec

SAMPLER = WorkerSpec("rollout", "a:Sampler", {"base": "tiny", "threads": 1}, (0,))
TRAINER = WorkerSpec("training", "a:Trainer", {"base": "tiny", "threads": 2}, (1, 2))


@pytest.mark.parametrize("sharing", ["base", "sleep"])
def test_one_worker_does_what_both_specs_say(sharing: str) -> None:
    spec = shared_spec(SAMPLER, TRAINER, sharing)  # type: ignore[arg-type]
    assert (spec.name, spec.factory, spec.cores) == ("rollout", COLOCATED, (0, 1, 2))
    assert spec.kwargs == {"sharing": sharing, "sampler": SAMPLER.kwargs, "trainer": TRAINER.kwargs}


@pytest.mark.parametrize("sharing", ["", "memory"])
def test_other_ways_of_sharing_are_two_processes(sharing: str) -> None:
    with pytest.raises(ValueError, match="no single process"):
        shared_spec(SAMPLER, TRAINER, sharing)  # type: ignore[arg-type]
