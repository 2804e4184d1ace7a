"""A PostgreSQL that can't be reached after the stream has ended."""

from __future__ import annotations

from pathlib import Path

from laredo_fanout.ingest.supervisor import Ingest
from laredo_fanout.source_options import SourceOptions
from laredo_fanout.store.environment import SourceIdentity
from laredo_fanout.store.writer import Store
from laredo_model.position import History


def test_it_is_noticed_with_the_default_slot_name_too(store: Store, tmp_path: Path) -> None:
    """PostgreSQL is asked for that name first; standbys take over from a holder that is cut off."""
    with store.transaction() as transaction:
        transaction.set_source(SourceIdentity(History(1, 1, 1), "laredo", "laredo:1"))
        transaction.set_position(10, 0)
    options = SourceOptions(f"host={tmp_path} user=nobody", slot_name_given=False)
    ingest = Ingest(options, (), store, lambda _: None)
    ingest._read_slot()
    assert ingest.is_cut_off
