"""Stores of earlier versions go on with this one; a newer one is refused; a layout has a number.

The files are what the server of the commit in their names left of the same work
(``make.py``): 20 rows of two tables copied, then six changes.
"""

import gzip
import json
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import orjson
import pytest

from laredo_fanout.store import meta
from laredo_fanout.store.reader import StoreReader
from laredo_fanout.store.rows.changes import TableChanges
from laredo_fanout.store.table import Status
from laredo_fanout.store.writer import Store
from laredo_model.change import Action
from tests.fanout.store.formats import description
from tests.fanout.store.formats.description import HERE
from tests.support.processes import BIN, PATIENCE_S, free_port
from tests.support.server.store_sample import journal_of, state_of

FIXTURES = sorted(HERE.glob("*.mdb.gz"))
SIZE = 1 << 24
USERS = {
    **{n: f"name {n}" for n in range(1, 21) if n != 3},
    **dict.fromkeys((1, 2), "updated"),
    21: "inserted",
}


def test_the_layout_is_the_one_recorded_for_its_number() -> None:
    recorded = HERE / f"{meta.FORMAT}.txt"
    assert recorded.exists(), "python -m tests.fanout.store.formats.description"
    assert description.description() == recorded.read_text(), (
        "the store's layout has changed: raise FORMAT in laredo_fanout/store/meta.py, say there"
        " what the new number is, keep a store of the last commit with the old one"
        " (python -m tests.fanout.store.formats.make COMMIT), then record the new layout"
        " (python -m tests.fanout.store.formats.description)"
    )


def test_the_description_has_every_field() -> None:
    described = (description.HEAD, description.TABLE, description.PLAN)
    assert [name for value in described for name in description.unset(value)] == []


@pytest.fixture(params=FIXTURES, ids=lambda path: path.name.partition(".")[0])
def stored(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """A directory with what an earlier version left."""
    (tmp_path / "data.mdb").write_bytes(gzip.decompress(request.param.read_bytes()))
    return tmp_path


@contextmanager
def opened(path: Path) -> Iterator[tuple[Store, dict[str, int]]]:
    with Store.open(path, max_size=SIZE) as store:
        yield store, {record.name: record.id for record in store.tables.values()}


def format_of(path: Path) -> int:
    """The number that is in the file."""
    with Store.open(path, max_size=SIZE) as store, store._environment.begin() as raw:
        return int(orjson.loads(raw.get(meta.STORE_KEY, db=store._databases.meta))["format"])


def names(reader: StoreReader, table: int) -> dict[int, str]:
    return {row["id"]: row["name"] for row in map(orjson.loads, state_of(reader, table).values())}


def test_there_are_stores_of_every_format(tmp_path: Path) -> None:
    found = set()
    for fixture in FIXTURES:
        raw = gzip.decompress(fixture.read_bytes())
        at = raw.index(b'{"format":')
        found.add(int(raw[at + 10 : at + 11]))
    assert found >= set(range(1, meta.FORMAT)), "a format without a store of it"


def test_rows_and_journal_are_as_they_were(stored: Path) -> None:
    with opened(stored) as (store, ids):
        reader = store.reader()
        assert {record.status for record in store.tables.values()} == {Status.LIVE}
        assert names(reader, ids["users"]) == USERS
        assert len(state_of(reader, ids["days"])) == 20
        changes = [(change.action, change.key) for _, _, change in journal_of(reader, ids["users"])]
        assert changes == [
            (Action.INSERT, b"21"),
            (Action.UPDATE, b"1"),
            (Action.UPDATE, b"2"),
            (Action.DELETE, b"3"),
        ]
        assert store.source is not None and store.source.slot == "s"
        assert store.position >= journal_of(reader, ids["users"])[-1][1] > 0


def test_it_goes_on(stored: Path) -> None:
    with opened(stored) as (store, ids):
        before = store.tables[ids["users"]].sequence
        position = store.position + 100
        columns = store.tables[ids["users"]].columns
        assert [column.name for column in columns] == ["id", "name"]
        with store.transaction() as transaction:
            transaction.apply(ids["users"], _insertion(position))
            transaction.set_position(position, 1)
    with opened(stored) as (store, ids):
        assert store.position == position
        assert store.tables[ids["users"]].sequence == before + 1
        assert names(store.reader(), ids["users"]) == {**USERS, 22: "later"}


def _insertion(position: int) -> TableChanges:
    return TableChanges(
        bytearray([Action.INSERT]), [b"22"], [b'{"id":22,"name":"later"}'], [1], [position], [1]
    )


def test_an_opened_store_has_this_version_s_number(stored: Path) -> None:
    """An earlier version then refuses it instead of forgetting what it doesn't know."""
    assert format_of(stored) == meta.FORMAT
    assert format_of(stored) == meta.FORMAT


def test_the_server_refuses_a_newer_store_in_words(tmp_path: Path) -> None:
    state = tmp_path / "state"
    with Store.open(state, max_size=SIZE) as store, store.transaction() as transaction:
        head = orjson.loads(transaction.head.to_bytes()) | {"format": meta.FORMAT + 1}
        raw = transaction._context.transaction
        raw.put(meta.STORE_KEY, orjson.dumps(head), db=store._databases.meta)
    file = tmp_path / "fanout.conf"
    file.write_text(
        f'state.path = "{state}"\n'
        f'sources.pg.connection = "host=127.0.0.1 port={free_port()} dbname=none"\n'
        f"fanout.grpc.port = {free_port()}, http.port = {free_port()}\n"
        "tables = [{ table = users }]\n"
    )
    ended = subprocess.run(
        [BIN / "laredo-fanout", "--config", file],
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )
    assert ended.returncode == 1
    lines = [json.loads(line) for line in ended.stderr.splitlines() if line.startswith("{")]
    (said,) = [line["error"] for line in lines if line["level"] == "error"]
    assert said == (
        f"the store {state} has format {meta.FORMAT + 1}, this version knows {meta.FORMAT}; "
        "run the newer version, or move the store elsewhere to copy every table again"
    )
