"""Parquet snapshots written by docs/archive-format.md alone, with pyarrow's own functions."""

import json
from collections.abc import Mapping, Sequence
from datetime import date, datetime
from decimal import Decimal
from io import BytesIO
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from tests.support.golden.written import members

REST = "_laredo_rest"

_TYPES: Mapping[str, tuple[pa.DataType, Any]] = {
    "bool": (pa.bool_(), json.loads),
    "int8": (pa.int64(), int),
    "float8": (pa.float64(), lambda text: float(text.strip('"'))),
    "numeric": (pa.decimal128(10, 2), lambda text: Decimal(json.loads(text))),
    "date": (pa.date32(), lambda text: date.fromisoformat(json.loads(text))),
    "timestamptz": (
        pa.timestamp("us", "UTC"),
        lambda text: datetime.fromisoformat(json.loads(text)),
    ),
    "bytea": (pa.binary(), lambda text: bytes.fromhex(json.loads(text)[2:])),
    "jsonb": (pa.string(), str),
    "text": (pa.string(), json.loads),
    "_text": (pa.list_(pa.string()), json.loads),
}


def written(lines: Sequence[str], columns: Sequence[Sequence[Any]], every: int) -> bytes:
    """Row groups of ``every`` rows."""
    rows = [_row(line, {name: type_name for name, type_name, _ in columns}) for line in lines]
    fields = [(name, _TYPES[type_name][0]) for name, type_name, _ in columns]
    schema = pa.schema([*fields, (REST, pa.string())], {"laredo.rest": REST})
    sink = BytesIO()
    pq.write_table(pa.Table.from_pylist(rows, schema), sink, row_group_size=every)
    return sink.getvalue()


def _row(line: str, types: Mapping[str, str]) -> dict[str, Any]:
    """Values as Python has them; what it or Arrow lacks beside them."""
    row: dict[str, Any] = {}
    rest: list[str] = []
    for name, text in members(line).items():
        try:
            row[name] = None if text == "null" else _TYPES[types[name]][1](text)
            lost = _is_lost(row[name])
        except ValueError:
            lost = True
        if lost:
            row[name] = None
            rest.append(f"{json.dumps(name)}:{text}")
    return row | {REST: "{" + ",".join(rest) + "}" if rest else None}


def _is_lost(value: Any) -> bool:
    """True if the column's type lacks the value: NaN in a decimal, an array in an array."""
    if isinstance(value, Decimal):
        return value.is_nan()
    return isinstance(value, list) and any(isinstance(element, list) for element in value)


def same_content(one: bytes, other: bytes) -> bool:
    """True if two files have the same rows, whichever pyarrow wrote them."""
    files = [pq.ParquetFile(BytesIO(data)) for data in (one, other)]
    first, second = [(file.read(), file.num_row_groups) for file in files]
    same_schema = first[0].schema.equals(second[0].schema, check_metadata=True)
    return same_schema and first[1] == second[1] and _shown(first[0]) == _shown(second[0])


def _shown(table: pa.Table) -> str:
    return repr(table.to_pylist())  # where NaN equals NaN


def row_groups(data: bytes) -> list[int]:
    """Offsets of the row groups."""
    metadata = pq.ParquetFile(BytesIO(data)).metadata
    columns = [metadata.row_group(number).column(0) for number in range(metadata.num_row_groups)]
    return [
        min(filter(None, (column.dictionary_page_offset, column.data_page_offset)))
        for column in columns
    ]
