"""The store's errors."""

from typing import NamedTuple

from laredo_model import position
from laredo_service import figures

_DROP_SLOT = "SELECT pg_drop_replication_slot('{}')"


class StoreError(Exception):
    """Root of the store's errors."""


class StoreLocked(StoreError):
    """Another server has locked this path."""

    def __init__(self, path: str, owner: str) -> None:
        super().__init__(
            f"the store {path} is in use by another server ({owner}); "
            "stop it first, or give this server its own state.path"
        )


class StoreMissing(StoreError):
    """There is no store at this path."""

    def __init__(self, path: str) -> None:
        super().__init__(
            f"there is no store at {path}; start the server with this state.path first"
        )


class StoreDamaged(StoreError):
    """The files at this path are not a store, or a damaged one."""

    def __init__(self, path: str, why: str) -> None:
        super().__init__(
            f"the store {path} is damaged: {why}; check its disk, move it elsewhere, drop its"
            " slot and start the server again, which then copies every table"
        )


class StoreLimited(StoreError):
    """A limit of this process, or of the system, is too low to open the store."""

    def __init__(self, path: str, why: str, cure: str) -> None:
        super().__init__(f"the store {path} can't be opened: {why}; {cure}")


class StoreUnusable(StoreError):
    """The directory can't be created, read or written."""

    def __init__(self, path: str, why: str) -> None:
        super().__init__(
            f"the store {path} can't be used: {why}; "
            "state.path must be a directory that this user may write"
        )


class StoreFormatUnknown(StoreError):
    """Another version of this program wrote the store, in a format that this one doesn't read."""

    def __init__(self, path: str, found: object, supported: int, slot: str | None) -> None:
        dropping = f", drop its slot ({_DROP_SLOT.format(slot)})" if slot else ""
        super().__init__(
            f"the store {path} has format {found}, this version reads format {supported} alone:"
            f" run the version that wrote it, or move {path} elsewhere{dropping} and start the"
            " server again, which then copies every table"
        )


class StoreRemoved(StoreError):
    """The directory was deleted, moved or replaced while the store is open.

    LMDB would go on writing to a file that no later start would find.
    """

    def __init__(self, path: str, slot: str | None) -> None:
        dropping = f"drop its slot ({_DROP_SLOT.format(slot)}), " if slot else ""
        super().__init__(
            f"the store {path} was deleted or replaced while the server runs: nothing more is"
            " written or confirmed to PostgreSQL; if it was moved, move it back, and the server"
            f" goes on by itself; otherwise stop the server, {dropping}"
            "and start it again, which copies every table"
        )


class StoreFull(StoreError):
    """No room for the transaction; everything that was committed stays readable."""


class DiskFull(StoreFull):
    """The file system has no room for the data file to grow."""

    def __init__(self, path: str, wanted: int, why: str) -> None:
        super().__init__(
            f"no room on the disk of the store {path}: about {figures.size(wanted)} more are"
            f" needed in all ({why}); free some space there, and the server goes on by itself"
        )


class MapFull(StoreFull):
    """The data file has reached state.max_size."""

    def __init__(self, path: str, max_size: int) -> None:
        super().__init__(
            f"the store {path} has reached state.max_size ({figures.size(max_size)}); "
            "raise it, or lower the journals' max_entries, and restart the server"
        )


class StoreBroken(StoreError):
    """A commit failed in the middle: the process must restart from the commit before it."""

    def __init__(self, path: str, why: str) -> None:
        super().__init__(
            f"writing the store {path} failed ({why}); check its disk, then restart the server, "
            "which goes on from the last commit"
        )


class TableUnknown(StoreError):
    """The store has no such table."""

    def __init__(self, table: int | str) -> None:
        named = table if isinstance(table, str) else f"with id {table}"
        super().__init__(f"the store has no table {named}")


class TableClosed(StoreError):
    """The table takes no such change in its present status."""

    def __init__(self, name: str, status: str, what: str) -> None:
        super().__init__(f"table {name} is {status}: it can't take {what}")


class TableHidden(StoreError):
    """The table can't be read: it is being copied, or failed."""

    def __init__(self, name: str, status: str, error: str) -> None:
        why = f" ({error})" if error else ""
        super().__init__(f"table {name} is {status}{why}: it has no rows to show yet")


class ChunkStale(StoreError):
    """Copied rows that were read before the table was truncated: read the range again."""

    def __init__(self, name: str, read: int, current: int) -> None:
        super().__init__(
            f"table {name}: these rows were read in generation {read}, but the table was truncated"
            f" since (generation {current}); read the range again"
        )


class RowIncomplete(StoreError):
    """A row lacks columns (unchanged TOAST) that the store lacks too: copy the table again."""

    def __init__(self, name: str, key: bytes) -> None:
        super().__init__(
            f"table {name}, key {key[:80]!r}: the change lacks columns whose values the store "
            "doesn't have; the table must be copied again"
        )


class Damage(NamedTuple):
    """Damage on disk that a reader of the store found, for the ingest to repair."""

    #: The incarnation's id.
    table_id: int
    #: The place of the damage, in a few words.
    why: str
    #: The last journal entry before the damage; None if the rows are damaged.
    after: int | None = None
    #: The space of the damaged rows; a table that was repaired since has another one.
    space: int = 0


class RowDamaged(StoreError):
    """A stored row that a change replaces isn't what was written: copy the table again."""

    def __init__(self, name: str, key: bytes) -> None:
        self.table = name
        super().__init__(
            f"table {name}, key {key[:80]!r}: the stored row was damaged on disk, so the change's"
            " old row is unknown; the table must be copied again"
        )


class RowsDamaged(StoreError):
    """The table's stored rows aren't those that were written, so they can't be read."""

    def __init__(self, table_id: int, name: str, why: str, space: int) -> None:
        self.damage = Damage(table_id, why, space=space)
        super().__init__(
            f"table {name}: its rows in the store were damaged on disk ({why}); the server copies"
            " them again, from PostgreSQL or from the server that it follows: connect again"
        )


class JournalDamaged(StoreError):
    """A stored journal record isn't what was written: readers before its end need a snapshot."""

    def __init__(self, table_id: int, name: str, sequence: int) -> None:
        self.damage = Damage(table_id, f"a journal record after entry {sequence}", sequence)
        super().__init__(
            f"table {name}: a journal record in the store was damaged on disk (after entry"
            f" {sequence}); the server drops the journal up to there, and its readers get a"
            " snapshot: connect again"
        )


class TransactionOpen(StoreError):
    """A commit was attempted in the middle of a PostgreSQL transaction."""

    def __init__(self, name: str) -> None:
        super().__init__(
            f"table {name}: the last changes belong to a transaction that isn't whole yet"
        )


class PositionWentBack(StoreError):
    """The store is already after this position, in the same history."""

    def __init__(self, stored: int, given: int) -> None:
        super().__init__(
            f"the store is at {position.text(stored)} and can't go back to {position.text(given)}"
        )


class JournalPruned(StoreError):
    """The requested entries were pruned from the journal: start from a snapshot."""

    def __init__(self, name: str, after: int, oldest: int) -> None:
        super().__init__(
            f"table {name}: entries after {after} were requested, but the journal begins at"
            f" {oldest}; start from a snapshot"
        )


class SnapshotClosed(StoreError):
    """Rows were requested from a closed snapshot, which must not look like the end of its rows."""

    def __init__(self, name: str) -> None:
        super().__init__(f"table {name}: this snapshot is closed; open another one to read rows")


class SpoolFailed(StoreError):
    """The rest of a snapshot couldn't be written to a temporary file."""

    def __init__(self, directory: str, why: str) -> None:
        super().__init__(f"can't spool a snapshot in {directory}: {why}")
