"""The way of one UPDATE, traced at run time, is the one in docs/architecture.md."""

from pathlib import Path

import pytest

from docs import trace
from laredo_fanout.app import compiled
from tests.support.postgres import Database


@pytest.mark.skipif(bool(compiled.missing()), reason="the page has the way through the C modules")
def test_an_update_enters_the_files_of_the_page(database: Database, tmp_path: Path) -> None:
    way = trace.way_of(trace.followed(database.dsn, tmp_path))
    page = trace.PAGE.read_text()
    assert trace.written(page, way) == page, "it is stale; run python -m docs.trace --write"
    assert "` | | |\n" not in page, "a file lacks what it takes and gives"


def test_a_page_without_markers_is_refused() -> None:
    with pytest.raises(ValueError, match=r"no .*part: Ingest.* put both in"):
        trace.written("text\n", {"Ingest": trace.Part()})
