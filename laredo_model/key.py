"""The key of a row, as a string: what identifies it in state, journal, wire and archive.

For one key column it is the value as unescaped text (``42``, ``a"b``), for
several the compact JSON array of the row's JSON values, in the key's order
(``["a",7]``). Keys order by their UTF-8 bytes.
"""

from collections.abc import Sequence

import orjson

from laredo_model import line as line_
from laredo_model.errors import BadLine


def of_fragments(fragments: Sequence[bytes]) -> bytes:
    """The key made of the key columns' JSON values, given in the key's order."""
    if len(fragments) == 1:
        return of_fragment(fragments[0])
    return b"[" + b",".join(fragments) + b"]"


def of_fragment(fragment: bytes) -> bytes:
    """The key of a row whose one key column has this JSON value."""
    if fragment[:1] != b'"':
        return fragment
    if b"\\" not in fragment:
        return fragment[1:-1]
    text: str = orjson.loads(fragment)
    return text.encode()


def of_line(line: bytes, key_fields: Sequence[str]) -> bytes:
    """The key of ``line``, whose key columns are named ``key_fields``, in the key's order.

    :raises BadLine: if ``line`` isn't a row's line or lacks a key column.
    """
    values = dict(line_.items(line))
    try:
        return of_fragments([values[orjson.dumps(name)] for name in key_fields])
    except KeyError as missing:
        raise BadLine(
            f"the row has no key column {missing.args[0].decode()}: {line[:80]!r}"
        ) from None
