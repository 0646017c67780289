from hypothesis import given, strategies as st

from marlaas.engine.adapters.statefile import Kept, RetentionVersion, keep


def version(number: int, best: bool = False, resumable: bool = True, final: bool = False) -> RetentionVersion:
    return RetentionVersion(number, resumable, best, final)


def kept(files: set[int], moments: set[int]) -> Kept:
    return Kept(frozenset(files), frozenset(moments))


def test_the_last_two_the_best_and_the_final_stay() -> None:
    versions = [version(0), version(1, True), version(2), version(3), version(4), version(5, final=True)]
    assert keep(versions) == kept({1, 4, 5}, {4, 5})


def test_the_best_of_every_series_stays() -> None:
    versions = [version(1, True), version(2, True), version(3), version(4), version(5)]
    assert keep(versions) == kept({1, 2, 4, 5}, {4, 5})


def test_every_nth_version_stays_from_version_0_on() -> None:
    versions = [version(number, resumable=number > 4) for number in range(8)]
    assert keep(versions, every=3) == kept({0, 3, 6, 7}, {6, 7})
    assert keep(versions, every=1).files == set(range(8))


def test_version_0_stays_only_while_it_is_needed_to_go_on() -> None:
    assert keep([version(0)]) == kept({0}, {0})
    assert keep([version(0), version(1)]) == kept({0, 1}, {0, 1})
    assert keep([version(0), version(1, True), version(2), version(3)]) == kept({1, 2, 3}, {2, 3})


def test_only_resumable_versions_count_among_the_two() -> None:
    versions = [version(1), version(2), version(3, resumable=False), version(4, resumable=False, final=True)]
    assert keep(versions) == kept({1, 2, 4}, {1, 2})


@given(
    st.lists(
        st.builds(RetentionVersion, st.integers(0, 99), st.booleans(), st.booleans(), st.booleans()),
        unique_by=lambda v: v.number,
    ),
    st.integers(0, 9),
)
def test_little_is_kept_but_never_what_is_needed(versions: list[RetentionVersion], every: int) -> None:
    stay = keep(versions, every)
    finals = {v.number for v in versions if v.is_final}
    series = {v.number for v in versions if every and v.number % every == 0}
    resumable = sorted(v.number for v in versions if v.resumable)
    best = {v.number for v in versions if v.is_best}
    assert stay.moments == set(resumable[-2:])
    assert stay.files == finals | series | best | stay.moments
    assert keep([v for v in versions if v.number in stay.files], every) == stay  # pruning twice prunes nothing more
