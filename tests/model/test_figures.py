"""Sizes, durations, counts and ages as people read them."""

from datetime import UTC, datetime, timedelta

import pytest

from laredo_service import figures


@pytest.mark.parametrize(
    ("count", "text"),
    [
        (None, "–"),
        (0, "0 B"),
        (999, "999 B"),
        (1_500, "1.5 kB"),
        (999_949, "999.9 kB"),
        (999_950, "1.0 MB"),
        (3 * 10**9, "3.0 GB"),
        (10**18, "1,000.0 PB"),
    ],
)
def test_sizes(count: int | None, text: str) -> None:
    assert figures.size(count) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (None, "–"),
        (0, "0 s"),
        (0.44, "0.4 s"),
        (3, "3 s"),
        (59.4, "59 s"),
        (60, "1 min"),
        (90, "1 min 30 s"),
        (3599, "59 min"),
        (7500, "2 h 5 min"),
        (90_000, "1 d 1 h"),
    ],
)
def test_durations(seconds: float | None, text: str) -> None:
    assert figures.duration(seconds) == text


def test_times() -> None:
    before = datetime.now(UTC) - timedelta(seconds=150)
    assert figures.ago(before) == figures.ago(before.isoformat()) == "2 min ago"
    assert figures.ago(before.isoformat().replace("+00:00", "Z")) == "2 min ago"
    assert figures.ago(datetime.now(UTC) + timedelta(hours=1)) == "0 s ago"
    assert figures.ago(None) == "–"
    assert figures.age(before) == "2 min" and figures.age(None) == "–"
    assert figures.counted(1, "table") == "1 table"
    assert figures.counted(1_000, "table") == "1,000 tables"
    assert figures.count(1234567) == "1,234,567" and figures.count(None) == "–"
