"""docs/costs.md counts the requests that are really sent."""

from collections import Counter
from collections.abc import Mapping
from pathlib import Path

import pytest

from benchmarks import costs
from laredo_archive.maintain.collect import collect
from tests.support.archive.archiving import (
    AT_ONCE,
    ONE,
    PREFIX,
    TABLE,
    TWO,
    begun_base,
    diffed,
    opened,
    rebased,
)
from tests.support.archive.s3_maker import S3Maker
from tests.support.archive.s3_way import LARGE

PAGE = Path(__file__).parents[3] / "docs" / "costs.md"


def sent(s3: S3Maker) -> Counter[str]:
    """Requests since the last call."""
    found = Counter(call.operation for call in s3.called)
    s3.called.clear()
    return found


def summed(*requests: Mapping[str, float]) -> Counter[str]:
    total: Counter[str] = Counter()
    for each in requests:
        total.update(each)  # type: ignore[arg-type]
    return total


def test_a_diff_a_base_and_a_collection_are_what_the_costs_say(s3: S3Maker) -> None:
    destination = s3()
    with opened([destination], keep_epochs=1) as archive:
        sent(s3)
        with begun_base(archive) as upload:
            upload.write([b"1"], [b'{"id":1,"v":"%s"}' % LARGE])
            archive.commit_base(upload.finish(None), continues=False)
        assert sent(s3) == summed(costs.BASE, costs.PART, costs.PART, costs.MANIFEST)
        rebased(archive, 20, ONE, continues=False)
        sent(s3)
        diffed(archive, 20, 30, ONE, TWO)
        assert sent(s3) == summed(costs.DIFF, costs.MANIFEST)
    collected = collect(destination, TABLE, key_prefix=PREFIX, policy=AT_ONCE)
    assert collected.deleted == ["public.t/epoch=1/snapshot-0_A.jsonl"]
    deletions = {"DeleteObject": 1}
    assert sent(s3) == summed(costs.COLLECTION, costs.PAGE, costs.DELETING, deletions)
    collect(destination, TABLE, key_prefix=PREFIX, policy=AT_ONCE)
    assert sent(s3) == summed(costs.COLLECTION, costs.PAGE)


def test_the_page_shows_what_is_computed() -> None:
    assert costs.table() in PAGE.read_text()


@pytest.mark.parametrize(("interval_s", "puts"), [(5, 2 * 518_400), (60, 2 * 43_200)])
def test_a_busy_month_is_two_puts_a_diff(interval_s: float, puts: int) -> None:
    load = costs.Load(interval_s)
    every = summed(costs.per_format(load), costs.per_destination(load))
    bases_and_collections = 2 * 720 + load.bases
    assert every["PutObject"] == pytest.approx(puts + bases_and_collections)
