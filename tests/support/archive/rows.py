"""Tables, rows and changes for property tests: every JSON value rule of docs/archive-format.md."""

import json
from dataclasses import dataclass

import orjson
from hypothesis import strategies as st

from laredo_archive.codec import struct_rows
from laredo_model import key as keys
from laredo_model import line as lines
from laredo_model.column import Column
from laredo_model.line import Action, Change

TEXT = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\x00"), max_size=30)


def _string(text: str) -> bytes:
    return orjson.dumps(text)


def _float(number: float, digits: int) -> bytes:
    return struct_rows.text(number, digits)


_INTEGERS = st.integers(-(2**63), 2**63 - 1) | st.integers(-20, 20)
_NUMERIC = st.decimals(allow_nan=True).map(lambda number: _string(f"{number:f}"))
_JSON = st.one_of(
    st.sampled_from(
        [
            b'{"a":1,"a":2}',
            b'{ "b" : [ 1.50, 123456789012345678901234567890 ] }',
            b'"\\ud800"',
            b'{"x":"},\\"new\\":{"}',
            b'{"deep":[[[[{"e":{"f":[1,{"g":"]}"}]}}]]]]}',
            b"1e400",
            b'{"row":{"v":"},\\"y"},"new":{"z":1}}',
        ]
    ),
    st.recursive(
        st.none() | st.booleans() | _INTEGERS | TEXT,
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3),
        max_leaves=8,
    ).map(lambda value: json.dumps(value, ensure_ascii=False).encode()),
)
_FLOAT8 = st.floats().map(
    lambda number: _float(number, struct_rows.FLOAT8_DIGITS)
) | st.sampled_from(
    # Digits that are one more than Python needs: PostgreSQL prints such for some numbers.
    [b"9.999999999999999e+22", b"-0", b"1e+15", b"5e-324", b"20000000000000000001e+3"]
)
_FLOAT4 = st.floats(width=32).map(
    lambda number: _float(float(f"{number:.9g}"), struct_rows.FLOAT4_DIGITS)
)

VALUES: dict[str, st.SearchStrategy[bytes]] = {
    "bool": st.sampled_from([b"true", b"false"]),
    "int2": st.integers(-(2**15), 2**15 - 1).map(lambda number: b"%d" % number),
    "int4": st.integers(-(2**31), 2**31 - 1).map(lambda number: b"%d" % number),
    "int8": _INTEGERS.map(lambda number: b"%d" % number),
    "oid": st.integers(0, 2**32 - 1).map(lambda number: b"%d" % number),
    "float4": _FLOAT4,
    "float8": _FLOAT8,
    "numeric": _NUMERIC,
    "text": TEXT.map(_string) | st.sampled_from([b'"12"', b'"null"', b'"[1]"', b'""']),
    "timestamptz": st.datetimes().map(lambda moment: _string(f"{moment.isoformat()}+00:00")),
    "bytea": st.binary(max_size=20).map(lambda raw: _string("\\x" + raw.hex())),
    "json": _JSON,
    "jsonb": _JSON,
    "mood": st.sampled_from([b'"sad"', b'"it\'s \\"ok\\""']),
    "hstore": st.just(b'"\\"a\\"=>\\"1\\""'),
}


def _array(element: st.SearchStrategy[bytes]) -> st.SearchStrategy[bytes]:
    flat = st.lists(element | st.just(b"null"), max_size=4).map(lambda e: b"[%s]" % b",".join(e))
    return flat | st.lists(flat, min_size=1, max_size=3).map(lambda e: b"[%s]" % b",".join(e))


VALUES |= {f"_{name}": _array(values) for name, values in VALUES.items()}
# An array of a domain over int8: its type's name says nothing of numbers.
VALUES["_quantity"] = _array(VALUES["int8"])
_KEY_TYPES = ["int4", "int8", "text", "timestamptz", "bytea", "numeric", "float8"]


@dataclass(frozen=True)
class Table:
    """A table's columns, and what its rows may hold."""

    columns: list[Column]

    @property
    def key_fields(self) -> list[str]:
        keyed = sorted(
            (column for column in self.columns if column.key_ordinal),
            key=lambda column: column.key_ordinal or 0,
        )
        return [column.name for column in keyed]

    def line(self) -> st.SearchStrategy[bytes]:
        """A row."""
        values = [
            VALUES[column.type] | st.just(b"null") if column.nullable else VALUES[column.type]
            for column in self.columns
        ]
        names = [column.name for column in self.columns]
        return st.tuples(*values).map(lambda fragments: lines.join(names, fragments))

    def key(self, line: bytes) -> bytes:
        return keys.of_line(line, self.key_fields)

    def rows(self, max_size: int = 20) -> st.SearchStrategy[dict[bytes, bytes]]:
        """Rows by key, in key order."""
        return st.lists(self.line(), max_size=max_size).map(
            lambda found: dict(sorted((self.key(line), line) for line in found))
        )


@st.composite
def tables(draw: st.DrawFn) -> Table:
    """Up to seven columns, of which one or two are the key, anywhere, in any order."""
    names = draw(st.lists(TEXT, min_size=1, max_size=7, unique=True))
    key_size = draw(st.integers(1, min(2, len(names))))
    keyed = draw(st.permutations(range(len(names))))[:key_size]
    columns = []
    for index, name in enumerate(names):
        is_key = index in keyed
        types = _KEY_TYPES if is_key else sorted(VALUES)
        ordinal = keyed.index(index) + 1 if is_key else None
        type_name = draw(st.sampled_from(types))
        columns.append(Column(name, type_name, -1, not is_key, index + 1, ordinal))
    return Table(columns)


def changes(before: dict[bytes, bytes], after: dict[bytes, bytes]) -> list[Change]:
    """The net changes from one state to another, in key order."""
    found = []
    for key in sorted(before.keys() | after.keys()):
        old, new = before.get(key), after.get(key)
        if old == new:
            continue
        action = Action.INSERT if old is None else Action.DELETE if new is None else Action.UPDATE
        found.append(Change(action, key, old, new))
    return found
