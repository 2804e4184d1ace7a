"""Rows with json that few parsers hold."""

from laredo_model.column import Column
from tests.support.archive.building import State

HUGE = b"1e99999999999999999999"

DEEP = b"[" * 5000 + b"]" * 5000

DOCS = [
    HUGE,
    b"-1.5E-99999999999999999999",
    b'{"a": [' + HUGE + b"]}",
    DEEP,
    b'{"a":' * 5000 + b"1" + b"}" * 5000,
    b"7" * 5000,
    b"1e400",
    rb'{"a":"\ud800"}',
    b'{"a": 1, "a":2}',
    b"null",
]

COLUMNS = (
    Column("id", "int8", -1, False, 1, 1),
    Column("doc", "json", -1, True, 2),
    Column("docs", "_json", -1, True, 3),
    Column("name", "text", -1, True, 4),
)


def rows(name: str) -> State:
    return {
        b"%d" % number: b'{"id":%d,"doc":%s,"docs":[%s,null],"name":"%s"}'
        % (number, doc, doc, name.encode())
        for number, doc in enumerate(DOCS)
    }
