"""How many segments: a pure function of what was measured."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from laredo_fanout.catchup.decision import DECODING_BINDS, LEAST_GAIN, Measured, decide

shares = st.floats(0, 1)
measurements = st.builds(
    Measured,
    ingest=shares,
    decoding=st.none() | shares,
    walsender=st.none() | shares,
    idle=st.none() | st.floats(0, 64),
)


@given(measurements, st.integers(2, 16))
def test_never_more_than_the_ingest_and_the_cores_carry(measured: Measured, most: int) -> None:
    decision = decide(measured, most)
    assert 1 <= decision.segments <= most
    if decision.segments > 1:
        assert decision.gain >= LEAST_GAIN
        assert decision.gain * measured.ingest <= 1.001
        assert measured.decoding is None or measured.decoding >= DECODING_BINDS
        if measured.idle is not None:
            used = decision.gain * (measured.ingest + (measured.walsender or 0))
            assert used <= (measured.idle + measured.ingest + (measured.walsender or 0) + 0.001)


@given(measurements, st.integers(2, 16), st.floats(0, 8))
def test_more_idle_cores_never_mean_less(measured: Measured, most: int, more: float) -> None:
    if measured.idle is not None:
        richer = measured._replace(idle=measured.idle + more)
        assert decide(richer, most).gain >= decide(measured, most).gain - 0.001


@given(measurements, st.integers(2, 16))
def test_the_reason_has_the_figures(measured: Measured, most: int) -> None:
    why = decide(measured, most).why
    assert f"the ingest uses {measured.ingest:.2f} of a core" in why
    assert why.count("assumed") == [
        measured.decoding,
        measured.walsender,
        measured.idle,
    ].count(None)


@pytest.mark.parametrize(
    ("measured", "segments", "says"),
    [
        (Measured(0.15, 0.95, 0.9, 0.9), 2, "decoding binds"),
        (Measured(0.15, 0.95, 0.9, 15.0), 4, "decoding binds"),
        (Measured(0.4, 0.95, None, 3.0), 3, "decoding binds"),
        (Measured(0.1, None, None, None), 4, "decoding binds"),
        (Measured(0.85, 0.36, 0.4, 0.6), 1, "PostgreSQL's decoding doesn't bind"),
        (Measured(0.85, 0.9, 0.9, 15.0), 1, "the ingest binds"),
        (Measured(0.85, None, None, None), 1, "the ingest binds"),
        (Measured(0.3, 0.95, 0.9, 0.1), 1, "the number of idle cores binds"),
    ],
    ids=[
        "two cores, sparse",
        "many cores, sparse",
        "no more than the ingest takes",
        "nothing can be measured",
        "dense",
        "both bind",
        "the ingest binds, nothing else measured",
        "no core is idle",
    ],
)
def test_what_binds_decides(measured: Measured, segments: int, says: str) -> None:
    decision = decide(measured, 4)
    assert decision.segments == segments
    assert says in decision.why
    if segments == 1:
        assert "docs/server/several-servers.md" in decision.why
