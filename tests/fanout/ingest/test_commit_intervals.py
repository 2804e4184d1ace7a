"""Time that changes are gathered before they are committed."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from laredo_fanout.batch.status import Counters
from laredo_fanout.batch.write_batch import WriteBatch
from laredo_fanout.source_options import CommitIntervals
from laredo_fanout.store.writer import Store


@pytest.fixture
def batch(tmp_path: Path) -> Iterator[WriteBatch]:
    with Store.open(tmp_path / "store", max_size=1 << 30) as store:
        yield WriteBatch(store, lambda _: None, CommitIntervals(1.0, 4.0), Counters())


@pytest.mark.parametrize(
    ("cost", "behind", "seconds"),
    [
        (0.001, 0, 0.05),
        (0.02, 0, 0.2),
        (0.3, 0, 1.0),
        (0.3, 10, 2.0),
        (0.3, 100, 3.0),
        (2.0, 100, 4.0),
        (0.001, 100, 0.05),
    ],
)
def test_changes_wait_a_second_and_longer_where_the_stream_is_late(
    batch: WriteBatch, cost: float, behind: float, seconds: float
) -> None:
    batch.cost = cost
    assert batch.interval(behind, waiting=True) == pytest.approx(seconds)


@pytest.mark.parametrize(("cost", "seconds"), [(0.001, 1.0), (0.3, 3.0), (2.0, 4.0)])
def test_rows_that_are_only_copied_wait_longer(
    batch: WriteBatch, cost: float, seconds: float
) -> None:
    batch.cost = cost
    assert batch.interval(0, waiting=False) == pytest.approx(seconds)
    batch.when_durable(lambda: None)
    assert batch.interval(0, waiting=False) <= 1.0


def test_tables_that_somebody_follows_are_not_only_copied(batch: WriteBatch) -> None:
    batch.cost = 0.3
    batch.touch(1)
    assert batch.interval(0, waiting=False) == 1.0
