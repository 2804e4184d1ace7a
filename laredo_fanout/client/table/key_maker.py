"""Makes a row's key of values, so that a look-up by the key's columns needs no index."""

from collections.abc import Callable, Sequence

import orjson

from laredo_fanout.client.errors import BadField
from laredo_fanout.client.table.rows import as_text
from laredo_model import key as key_
from laredo_model.column import Column, key_columns

_NUMBERS = frozenset({"int2", "int4", "int8", "oid"})
# How these are printed isn't for a client to guess, so look-ups by them go through an index.
_NOT_FROM_VALUES = frozenset({"float4", "float8", "json", "jsonb"})


def key_maker(
    columns: Sequence[Column], fields: Sequence[str] | None
) -> Callable[[Sequence[object]], bytes] | None:
    """A function that makes a row's key of values of ``fields`` (None: the key's columns).

    None when ``fields`` aren't the key's columns, or the key can't be made of
    values, so that an index is needed.
    """
    parts = key_columns(columns)
    names = [column.name for column in parts]
    asked = names if fields is None else list(fields)
    if not parts or sorted(asked) != sorted(names):
        return None
    if any(column.type in _NOT_FROM_VALUES or column.type.startswith("_") for column in parts):
        return None
    numbers = [asked.index(name) for name in names]

    def make(values: Sequence[object]) -> bytes:
        if len(values) != len(asked):
            raise BadField(f"lookup wants {len(asked)} values ({', '.join(asked)})")
        return key_.of_fragments(
            [_fragment(part, values[number]) for part, number in zip(parts, numbers, strict=True)]
        )

    return make


def _fragment(column: Column, value: object) -> bytes:
    text = as_text(value)
    if text is None:
        raise BadField(f"lookup: column {column.name!r} is part of the key and never NULL")
    try:
        plain = column.type in _NUMBERS or column.type == "bool"
        return text.encode() if plain else orjson.dumps(text)
    except (UnicodeEncodeError, orjson.JSONEncodeError):
        raise BadField(f"lookup: {text!r} isn't text that PostgreSQL can hold") from None
