import numpy as np
from hypothesis import given, strategies as st

from marlaas.engine.trainer.decoder.packing import PackedBatch, families, packed_batches
from marlaas.engine.trainer.protocol import TrainGroup

from ..samples import sequence
from .random_models import random_groups


def read(batch: PackedBatch, number: int, row: int) -> list[int]:
    """Tokens of a prompt and one of its rows, without padding."""
    places = [*batch.prefixes[number], *batch.rows[number, row]]
    return [int(batch.tokens[place]) for place in places if place != batch.padding]


def test_prompts_and_equal_answers_are_laid_down_once() -> None:
    some = TrainGroup(
        0,
        (
            sequence([5, 6, 7, 8, 9], 2, 0.5),
            sequence([5, 6, 7, 8, 1], 2, 0.1),  # differs in the last token only, which is no input
            sequence([5, 6, 7, 2], 2, 0.2),  # its input, a 7, begins the others'
            sequence([5, 6, 3, 2], 2, -0.8),
        ),
    )
    (family,) = families(some)
    assert [row.tolist() for row in family.rows] == [[7, 8], [3]]
    (batch,) = packed_batches([[some]], 1000)
    used = 2 + 2 + 1
    assert sorted(batch.tokens[:used].tolist()) == [3, 5, 6, 7, 8]
    assert batch.positions[:used].tolist() == [0, 1, 2, 3, 2]
    assert len(set(batch.needed) - {batch.padding}) == 4  # the prompt's end, after 7, after 7 8, after 3
    assert batch.targets.tolist() == [7, 8, 9, 7, 8, 1, 7, 2, 3, 2]


def test_other_prompts_make_families_of_their_own() -> None:
    some = TrainGroup(0, (sequence([5, 6, 7], 2, 0.5), sequence([5, 4, 7], 2, 0.1), sequence([5, 6, 8], 2, 0.1)))
    assert [(family.prompt.tolist(), len(family.members)) for family in families(some)] == [([5, 6], 2), ([5, 4], 1)]


def test_nothing_to_train_makes_no_batch() -> None:
    assert list(packed_batches([[TrainGroup(0, ())]], 100)) == []
    assert list(packed_batches([[TrainGroup(0, (sequence([1, 2], 2, 0.5),))]], 100)) == []


@given(
    st.integers(0, 10_000),
    st.integers(1, 5),
    st.integers(1, 6),
    st.integers(1, 12),
    st.integers(1, 200),
    st.integers(1, 3),
)
def test_trained_tokens_are_predicted_from_those_before(
    seed: int, groups: int, members: int, longest: int, max_tokens: int, policies: int
) -> None:
    some = random_groups(seed, groups, members, longest)
    batches = list(packed_batches([some[policy::policies] for policy in range(policies)], max_tokens))
    seen: list[tuple[tuple[int, ...], int, float]] = []
    for batch in batches:
        before = {  # place → the tokens up to and including it
            int(place): tuple(read(batch, number, row)[: int(batch.positions[place]) + 1])
            for number in range(len(batch.prefixes))
            for row in range(batch.rows.shape[1])
            for place in (*batch.prefixes[number], *batch.rows[number, row])
            if place != batch.padding
        }
        behaviours = np.concatenate([lesson.trained.behaviour for lesson in batch.lessons])
        for source, target, behaviour in zip(batch.source, batch.targets, behaviours, strict=True):
            seen.append((before[int(batch.needed[source])], int(target), float(behaviour)))
        assert batch.padding not in batch.needed[batch.source]
    expected = [
        (tuple(s.tokens[:place].tolist()), int(s.tokens[place]), float(s.logprobs[place]))
        for group in some
        for s in group.sequences
        for place in np.flatnonzero(s.mask)
    ]
    assert sorted(seen) == sorted(expected)


@given(st.integers(0, 10_000), st.integers(1, 5), st.integers(2, 6), st.integers(30, 200))
def test_only_a_single_sequence_may_exceed_the_limit(seed: int, groups: int, members: int, max_tokens: int) -> None:
    for batch in packed_batches([random_groups(seed, groups, members, 12)], max_tokens):
        assert (batch.tokens.size - 32 < max_tokens) or batch.rows.shape[:2] == (1, 1)


@given(st.integers(0, 10_000), st.integers(2, 4), st.integers(1, 3), st.integers(20, 200))
def test_each_policy_has_a_span_and_padding_has_none(seed: int, policies: int, groups: int, max_tokens: int) -> None:
    jobs = [random_groups(seed + policy, groups if policy != 1 else 0, 3, 12) for policy in range(policies)]
    for batch in packed_batches(jobs, max_tokens):
        owner = np.full(len(batch.tokens), -1)
        for policy, span in enumerate(batch.spans):
            assert (owner[span] == -1).all()
            owner[span] = policy
        assert owner[batch.padding] == -1
        needed = [owner[batch.needed[span]] for span in batch.needed_spans]
        assert all((own == policy).all() for policy, own in enumerate(needed))
        for lesson in batch.lessons:
            assert set(owner[batch.needed[batch.source[lesson.tokens]]]) == {lesson.policy}
            numbers = {group.number for group in jobs[lesson.policy]}
            assert set(lesson.groups) <= numbers and len(lesson.groups) == len(lesson.sequences)


def test_one_long_prompt_does_not_pad_all_the_short_ones() -> None:
    short = [TrainGroup(n, tuple(sequence([n, 1, 2, 3 + i], 3, 0.5) for i in range(4))) for n in range(40)]
    long = TrainGroup(99, (sequence([1] * 400, 396, 0.5),))
    batches = list(packed_batches([short[:20], [long], short[20:]], 1000))
    for batch in batches:
        assert batch.prefixes.size + batch.rows.size <= 2 * 1000 + 8 * 60  # rounding
    together = [len(batch.prefixes) for batch in batches]
    assert sum(together) == 41 and len(together) <= 4
