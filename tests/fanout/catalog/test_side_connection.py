"""What isn't foreseen in the side connection's thread."""

from pathlib import Path

import pytest

from laredo_fanout.ingest.change_source import MessageFeed
from laredo_fanout.ingest.supervisor import Ingest
from laredo_fanout.postgres.connections import Connection
from laredo_fanout.source_options import PublicationOptions, SourceOptions, SourceTableOptions
from laredo_fanout.store.writer import Store
from laredo_fanout.tables.write_batch import WriteBatch
from tests.support.postgres import Database


class Defective:
    """A detour that fails as only a defect does."""

    interval = 0.01

    def measure(self, connection: Connection) -> None:
        raise ZeroDivisionError("measured by nothing")

    def open(self, connection: Connection, batch: WriteBatch) -> MessageFeed | None:
        return None

    def is_over(self, level: int) -> bool:
        return False


def test_a_defect_ends_the_ingest_which_else_would_never_look_again(
    database: Database, tmp_path: Path
) -> None:
    with database.connect() as connection:
        connection.execute("CREATE TABLE users (id int PRIMARY KEY)")
    options = SourceOptions(
        database.dsn, slot_name=f"slot_{database.name}", publication=PublicationOptions("defective")
    )
    store = Store.open(tmp_path, max_size=1 << 30)
    ingest = Ingest(
        options,
        [SourceTableOptions("public", "users")],
        store,
        lambda _: None,
        change_source=Defective(),
    )
    with pytest.raises(ZeroDivisionError, match="measured by nothing"):
        ingest.run()
    store.close()
