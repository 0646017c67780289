from hypothesis import given
from hypothesis import strategies as st

from marlaas.engine.adapters.retention import RetentionVersion, keep


def version(number: int, score: float | None = None, resumable: bool = True, final: bool = False) -> RetentionVersion:
    return RetentionVersion(number, resumable, score, final)


def test_the_last_two_the_best_and_the_final_stay() -> None:
    versions = [version(0, 0.1), version(1, 0.9), version(2, 0.5), version(3), version(4), version(5, final=True)]
    assert keep(versions) == {1, 4, 5}


def test_the_newest_of_equally_good_ones_stays() -> None:
    assert keep([version(1, 0.9), version(2, 0.9), version(3), version(4)]) == {2, 3, 4}


def test_version_0_stays_only_while_it_is_needed_to_go_on() -> None:
    assert keep([version(0, 1.0)]) == {0}
    assert keep([version(0, 1.0), version(1)]) == {0, 1}
    assert keep([version(0, 1.0), version(1, 0.2), version(2), version(3)]) == {1, 2, 3}


def test_what_cannot_be_resumed_from_does_not_count_among_the_two() -> None:
    assert keep([version(1), version(2), version(3, resumable=False), version(4, resumable=False, final=True)]) == {
        1,
        2,
        4,
    }


def test_a_score_that_is_no_number_is_not_the_best() -> None:
    assert keep([version(1, 0.5), version(2, float("nan")), version(3), version(4)]) == {1, 3, 4}
    assert keep([]) == set()


@given(
    st.lists(
        st.builds(RetentionVersion, st.integers(0, 99), st.booleans(), st.none() | st.floats(0, 1), st.booleans()),
        unique_by=lambda v: v.number,
    )
)
def test_little_is_kept_but_never_what_is_needed(versions: list[RetentionVersion]) -> None:
    kept = keep(versions)
    finals = {v.number for v in versions if v.is_final}
    resumable = sorted(v.number for v in versions if v.resumable)
    scored = [v for v in versions if v.score is not None and v.number > 0]
    assert kept <= {v.number for v in versions}
    assert finals | set(resumable[-2:]) <= kept
    assert len(kept) <= len(finals) + 3
    assert not scored or any(v.number in kept and v.score == max(s.score or 0 for s in scored) for v in scored)
    assert keep([v for v in versions if v.number in kept]) == kept  # pruning twice prunes nothing more
