"""Random transactions while copying and while connections are killed: at every commit the journal
holds exactly what PostgreSQL held, known from the transactions themselves."""

import pytest

from tests.support import drawn
from tests.support.ingest import Start
from tests.support.postgres import Database
from tests.support.server.interleaving import TABLES, Interleaving, killing
from tests.support.server.journal_oracle import Replay


@pytest.mark.parametrize("seed", drawn.first(1, [1, 2, 3]))
def test_every_commit_is_in_the_journal_as_it_was(
    database: Database, ingesting: Start, seed: int
) -> None:
    with Interleaving(database, seed) as writing:
        ingest = ingesting(*TABLES, range_bytes=128 << 10, heartbeat_interval=0.2)
        writing.begin(ingest)
        with killing(database, seed, "stream", "copy", "side"):
            while not all(map(ingest.is_live, TABLES)):
                writing.step()
                assert ingest.error is None
            starts = [Replay(ingest, name) for name in TABLES]
            for _ in range(1300):
                writing.step()
        writing.finish()
        ingest.assert_equal()
        for start in starts:
            assert start.compare(writing.commits) > 50
