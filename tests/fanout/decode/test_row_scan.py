"""Plain rows taken in bulk, and all else handed back: compiled, and in Python.

tests/fuzz/twins.py compares both on drawn rows, right and wrong.
"""

import re
import shutil
import sysconfig
from collections.abc import Iterator
from pathlib import Path
from struct import pack

import pytest

from laredo_fanout.decode import row_decoder as row_decoder_
from laredo_fanout.decode import row_scan
from laredo_fanout.decode.frames import Get
from laredo_fanout.decode.row_decoder import row_decoder
from laredo_fanout.decode.row_scan import IGNORED, Route
from laredo_fanout.postgres import pgoutput as message_
from laredo_fanout.postgres.connections import ReplicationStreamBroken
from laredo_fanout.wire import protobuf
from laredo_model.column import Rule, TypeInfo, rule_of
from tests.support.row_tuples import NULL, TYPES, UNCHANGED, tuple_of

SCANS = [row_scan.scan_plainly, row_scan.scan]
_COMPILER = str(sysconfig.get_config_var("CC")).split()[0]
compiled = pytest.mark.skipif(not row_decoder_.COMPILED, reason="nothing is compiled here")
EACH = [
    pytest.param(row_scan.scan_plainly, id="python"),
    pytest.param(row_scan.scan, id="compiled", marks=compiled),
]
_WAL_END = 0x1234


def _xlog(kind: bytes, content: bytes) -> bytes:
    return b"w" + pack(">QQQ", 1, _WAL_END, 2) + kind + content


def _row(kind: bytes, oid: int, row: list[object], lead: bytes = b"") -> bytes:
    return _xlog(kind, pack(">I", oid) + lead + b"N" + tuple_of(row))


def _from(messages: list[bytes], end: int = 0) -> Get:
    left: Iterator[tuple[int, bytes]] = iter([(len(each), each) for each in messages])
    return lambda _: next(left, (end, b""))


def _route(types: list[str], keys: tuple[str, ...] = ("c0",)) -> Route:
    route = Route(1)
    names = [f"c{number}" for number in range(len(types))]
    kinds: list[TypeInfo] = [TYPES[name] for name in types]
    route.decode_by(row_decoder(names, kinds, keys, route.changes))
    return route


def _oid(number: int) -> bytes:
    return number.to_bytes(4, "big")


@pytest.mark.skipif(shutil.which(_COMPILER) is None, reason="there is no C compiler")
def test_it_is_compiled_where_there_is_a_compiler() -> None:
    """Else nothing here compares anything."""
    assert row_decoder_.COMPILED
    assert row_scan.scan is not row_scan.scan_plainly
    assert protobuf.repeated is not None


def test_c_knows_each_rule_by_its_letter() -> None:
    """The table is ``laredo_model.column``; what isn't in it, or in C only, is drift."""
    source = Path(row_scan.__file__).with_name("_plain_values.h").read_text()
    said = re.search(r"enum rule \{(.*?)\}", source, re.DOTALL)
    assert said is not None
    assert dict(re.findall(r"(\w+) = '(\w)'", said[1])) == {rule.name: rule.value for rule in Rule}
    assert {rule_of(each) for each in TYPES.values()} == set(Rule), (
        "tests/fuzz/twins.py draws all of them"
    )


def test_bytes_that_are_no_text_fail_where_it_is_told() -> None:
    message = _row(b"I", 7, ["1", "é"]).replace("é".encode(), b"\xff\xfe")
    for scan in SCANS:
        route = _route(["int8", "text"])
        scanned = scan(_from([message]), 9, {_oid(7): route}, {})
        assert scanned[1] == message
        assert not route.changes.actions and not route.changes.keys
        with pytest.raises(UnicodeDecodeError):
            route.put(message, 1)


@pytest.mark.parametrize("scan", EACH)
@pytest.mark.parametrize(
    "message",
    [
        b"k" + bytes(17),
        _xlog(b"B", bytes(20)),
        _xlog(b"C", bytes(25)),
        _xlog(b"D", pack(">I", 7) + b"K" + tuple_of(["1"])),
        _row(b"U", 7, ["1"], b"O" + tuple_of(["1"])),
        _row(b"U", 7, ["2"], b"K" + tuple_of(["1"])),
        _xlog(b"R", pack(">I", 7) + b"public\0t\0d" + bytes(2)),
    ],
    ids=["keepalive", "begin", "commit", "delete", "old row", "old key", "relation"],
)
def test_what_is_no_plain_row_is_handed_back(scan: row_scan.Scan, message: bytes) -> None:
    route = _route(["int8"])
    messages = [_row(b"I", 7, ["1"]), message, _row(b"I", 7, ["3"])]
    get, routes, touched = _from(messages), {_oid(7): route}, dict[Route, None]()
    scanned = scan(get, 9, routes, touched)
    received = len(messages[0]) + len(message)
    assert tuple(scanned) == (len(message), message, 2, received, _WAL_END)
    assert tuple(scan(get, 9, routes, touched)) == (0, None, 1, len(messages[2]), _WAL_END)
    assert route.changes.keys == [b"1", b"3"]


@pytest.mark.parametrize("scan", EACH)
@pytest.mark.parametrize("absent", [NULL, UNCHANGED])
def test_a_row_without_its_key_is_handed_back(scan: row_scan.Scan, absent: object) -> None:
    route = _route(["int8", "text"])
    row = _row(b"I", 7, [absent, "a"])
    assert scan(_from([row]), 9, {_oid(7): route}, {})[1] == row
    with pytest.raises(ReplicationStreamBroken, match="a key column is NULL"):
        route.put(row, 1)
    assert not route.changes.keys and not route.changes.lines and not route.changes.actions


@pytest.mark.parametrize("scan", EACH)
def test_the_limit_and_the_end(scan: row_scan.Scan) -> None:
    route = _route(["int8"])
    routes = {_oid(7): route, _oid(8): IGNORED}
    get = _from([_row(b"I", 7, [str(number)]) for number in range(5)], end=-1)
    assert tuple(scan(get, 3, routes, {}))[1:3] == (None, 3)
    assert tuple(scan(get, 9, routes, {}))[:3] == (-1, None, 2)
    assert route.changes.keys == [b"0", b"1", b"2", b"3", b"4"]
    assert tuple(scan(_from([]), 9, routes, {})) == (0, None, 0, 0, 0)


@pytest.mark.parametrize("scan", EACH)
def test_a_row_that_does_not_fill_its_message_is_refused_where_it_is_told(
    scan: row_scan.Scan,
) -> None:
    whole = _row(b"I", 7, ["12", NULL, "abcdef", "t"])
    for message in [*(whole[:size] for size in range(1, len(whole))), whole + b"n"]:
        route = _route(["int8", "text", "text", "bool"])
        scanned = scan(_from([message]), 9, {_oid(7): route}, {})
        assert scanned[1] == message
        assert not route.changes.keys
        if len(message) > 33:
            with pytest.raises(ReplicationStreamBroken, match="doesn't fill its message"):
                route.put(message, 1)


@compiled
def test_an_interrupt_is_no_bad_row() -> None:
    """An exception that ends an encoder doesn't count as a bad value."""

    def interrupted(value: bytes) -> bytes:
        raise KeyboardInterrupt

    assert row_decoder_.PlainRows is not None
    route = _route(["int8", "json"])
    route.plain = row_decoder_.PlainRows(
        b"ia", (b'{"c0":', b',"c1":'), (bytes, interrupted), (0,), bytes, *_sinks(route)
    )
    with pytest.raises(KeyboardInterrupt):
        row_scan.scan(_from([_row(b"I", 7, ["1", "{}"])]), 9, {_oid(7): route}, {})


def _sinks(route: Route) -> tuple[bytearray, list[bytes], list[bytes]]:
    return route.changes.actions, route.changes.keys, route.changes.lines


@pytest.mark.parametrize("scan", EACH)
def test_of_somebodys_long_message_only_the_beginning_is_handed_back(
    scan: row_scan.Scan,
) -> None:
    """Any role may write one of a gigabyte; libpq has two copies of it, and we none."""
    content = bytes(9) + b"somebody\0" + pack(">I", 5_000_000) + b"x" * 5_000_000
    handed = scan(_from([_xlog(b"M", content)]), 10, {}, {})
    message = handed[1]
    assert message is not None and len(message) == message_.KEPT_BYTES
    found = message_.emitted(message)
    assert (found.prefix, found.content) == (b"somebody", b"")
