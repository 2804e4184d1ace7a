"""The shape of a table: columns, key and publication; a change of it ends the incarnation.

The table's record keeps the shape, which is compared with each Relation message of
the stream and with each catalog snapshot.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from laredo_fanout.pg_catalog import table_definitions as version_
from laredo_fanout.pg_catalog.table_definitions import Version

if TYPE_CHECKING:
    from laredo_fanout.pg_catalog.table_definitions import SourceTable
    from laredo_fanout.postgres.pgoutput import Relation


class ShapeColumn(NamedTuple):
    """A column of a shape; ``type_oid`` and ``type_modifier`` are those of pg_attribute."""

    name: str
    type_oid: int
    type_modifier: int
    nullable: bool


class Shape(NamedTuple):
    """A table's shape; a change of any part requires another copy."""

    oid: int
    schema: str
    name: str
    columns: tuple[ShapeColumn, ...]
    key: tuple[str, ...]
    row_filter: str | None
    membership: int
    append_only: bool = False

    def fits(self, relation: Relation) -> bool:
        """True if the stream announces the table in this shape.

        With REPLICA IDENTITY FULL every column is flagged as key, so the key
        isn't compared.
        """
        announced = tuple(column[:3] for column in relation.columns)
        if (relation.oid, relation.schema, relation.name) != self[:3]:
            return False
        if announced != tuple(column[:3] for column in self.columns):
            return False
        if relation.replica_identity == "f" or self.append_only:
            return True
        flagged = {column.name for column in relation.columns if column.in_key}
        return flagged == set(self.key)

    def identifies(self, partition: Relation, usual: str | None) -> bool:
        """True if the stream sends the key of each row that is updated or deleted in a partition.

        ``usual`` is the replica identity (pg_class.relreplident) that the catalog shows for the
        partition. If a column list hides key columns of a partition, the stream's key flags can't
        be trusted, because PostgreSQL applies the root's column numbers to the partition. Then
        only the replica identity is compared.
        """
        if partition.replica_identity == "f":
            return True
        if not {column.name for column in partition.columns}.issuperset(self.key):
            return usual in (None, partition.replica_identity)
        flagged = {column.name for column in partition.columns if column.in_key}
        return flagged.issuperset(self.key)

    def difference(self, other: Shape) -> str:
        """The difference as a sentence, for the log."""
        if self.oid != other.oid:
            return "it was dropped and created again"
        if (self.schema, self.name) != (other.schema, other.name):
            return f"it was renamed from {self.schema}.{self.name}"
        if self.columns != other.columns:
            return _columns_difference(self.columns, other.columns)
        if self.key != other.key:
            return f"its key changed from {', '.join(self.key)} to {', '.join(other.key)}"
        return self._published_difference(other)

    def _published_difference(self, other: Shape) -> str:
        if self.append_only != other.append_only:
            return "append_only was changed"
        if self.row_filter != other.row_filter:
            return "the publication's row filter changed"
        return "it left the publication and came back"


def _columns_difference(before: tuple[ShapeColumn, ...], after: tuple[ShapeColumn, ...]) -> str:
    was = {column.name: column for column in before}
    now = {column.name: column for column in after}
    changes = {
        "removed": sorted(was.keys() - now.keys()),
        "added": sorted(now.keys() - was.keys()),
        "altered": sorted(name for name in was.keys() & now.keys() if was[name] != now[name]),
    }
    told = "; ".join(f"{what}: {', '.join(names)}" for what, names in changes.items() if names)
    return f"its columns changed ({told or 'another order'})"


def of_table(table: SourceTable) -> Shape:
    """The shape of a table of a catalog snapshot."""
    columns = tuple(
        ShapeColumn(column.name, column.type_info.oid, column.type_modifier, column.nullable)
        for column in table.columns
    )
    published = table.published
    return Shape(
        table.oid,
        table.schema,
        table.name,
        columns,
        table.key,
        published and published.row_filter,
        published.membership if published else 0,
        table.append_only,
    )


def to_json(shape: Shape, version: Version) -> dict[str, Any]:
    """The JSON that the table's record keeps."""
    kept = {**shape._asdict(), "columns": [list(column) for column in shape.columns]}
    return {"shape": {**kept, "key": list(shape.key)}, "version": version_.to_json(version)}


def from_json(stored: Mapping[str, Any]) -> tuple[Shape, Version] | None:
    """Parse the result of :func:`to_json`; None if there is none."""
    if "shape" not in stored:
        return None
    kept = stored["shape"]
    shape = Shape(
        kept["oid"],
        kept["schema"],
        kept["name"],
        tuple(ShapeColumn(*column) for column in kept["columns"]),
        tuple(kept["key"]),
        kept["row_filter"],
        kept["membership"],
        kept["append_only"],
    )
    return shape, version_.from_json(stored["version"])
