"""Lag of the slowest client is counted in transactions, as its limit is."""

from laredo_fanout.app import metrics
from laredo_fanout.app.metrics import BufferFigures
from laredo_fanout.serving.ports import ClientInfo, ClientState
from laredo_fanout.store.writer import Store
from tests.support.server.store_sample import apply, commit, insert

NAME = "public.users"


def client(name: str, sequence: int, depth: int) -> ClientState:
    info = ClientInfo(name, NAME, "peer", batch=True, filtered=False, connected_at_us=0)
    return ClientState(info, sequence, depth, "live")


def measured(store: Store, table: int, *clients: ClientState, limit: int = 50) -> BufferFigures:
    tables = {NAME: store.tables[table]}
    return metrics.measured(store.reader(), tables, {NAME: clients}, {NAME: limit})[NAME]


def test_a_giant_transaction_counts_once(store: Store, table: int) -> None:
    begin = store.tables[table].sequence
    commit(store, table, (10, [insert(f"{n}", n) for n in range(5000)]))
    for position in (20, 30):
        commit(store, table, (position, [insert(f"at{position}", 1)]))
    end = store.tables[table].sequence
    assert end - begin == 5002
    assert measured(store, table, client("a", begin, 5002)) == BufferFigures(3, 50)
    slow, quick = client("slow", begin + 5000, 2), client("quick", end - 1, 1)
    assert measured(store, table, quick, slow) == BufferFigures(2, 50)


def test_several_transactions_of_one_commit_count_each(store: Store, table: int) -> None:
    begin = store.tables[table].sequence
    together = [(position, [insert(f"{position}", 1)]) for position in range(10, 40)]
    commit(store, table, *together)
    assert measured(store, table, client("a", begin, 30)).depth == 30


def test_a_transaction_in_two_records_counts_once(store: Store, table: int) -> None:
    begin = store.tables[table].sequence
    rows = [insert(f"{n}", n, "x" * 5000) for n in range(500)]
    commit(store, table, (10, rows))
    records = store.reader().journal(table, begin, 1 << 30)
    assert len(records) > 1, "the transaction is one record"
    assert measured(store, table, client("a", begin, 500)).depth == 1


def test_a_client_that_has_all_is_none_behind(store: Store, table: int) -> None:
    commit(store, table, (10, [insert("a", 1)]))
    # A live client's sequence is noted once a second.
    assert measured(store, table, client("a", 0, 0)) == BufferFigures(0, 50)
    assert measured(store, table) == BufferFigures(0, 50)


def test_beyond_the_limit_nothing_more_is_counted(store: Store, table: int) -> None:
    begin = store.tables[table].sequence
    with store.transaction() as transaction:
        for n in range(2000):
            apply(transaction, table, (10 + n, [insert(f"{n}", "x" * 200)]))
    behind = client("a", begin, 2000)
    assert 50 < measured(store, table, behind).depth < 2000
    assert measured(store, table, behind, limit=3000).depth == 2000


def test_a_pruned_journal_is_no_error(store: Store, table: int) -> None:
    begin = store.tables[table].sequence
    for n in range(100):
        commit(store, table, (10 + n, [insert(f"{n}", 1)]))
    assert store.prune(table, 10, 1e9, now=0) > 0
    assert measured(store, table, client("a", begin, 100)).depth == 0
