"""Plain rows taken in bulk: compiled and in Python the same, and all else handed back."""

import shutil
import sysconfig
from collections.abc import Iterator
from struct import pack

import pytest
from hypothesis import given
from hypothesis import strategies as st

from laredo_fanout.errors import StreamBroken
from laredo_fanout.source import message as message_
from laredo_fanout.source import plain_rows, row_scan
from laredo_fanout.source.route import IGNORED, Route
from laredo_fanout.source.row_decoder import PADDING, compile_decoder
from laredo_fanout.source.streamed import Get
from laredo_fanout.wire import protobuf
from laredo_model.rule import TypeInfo
from tests.fanout.source.test_row_decoder import NULL, TYPES, UNCHANGED, drawn_rows, tuple_of

SCANS = [row_scan.scan_plainly, row_scan.scan]
_COMPILER = str(sysconfig.get_config_var("CC")).split()[0]
compiled = pytest.mark.skipif(not plain_rows.COMPILED, reason="nothing is compiled here")
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
    route.decode_by(compile_decoder(names, kinds, keys, route.changes))
    return route


def _oid(number: int) -> bytes:
    return number.to_bytes(4, "big")


@pytest.mark.skipif(shutil.which(_COMPILER) is None, reason="there is no C compiler")
def test_it_is_compiled_where_there_is_a_compiler() -> None:
    """Else nothing here compares anything."""
    assert plain_rows.COMPILED
    assert row_scan.scan is not row_scan.scan_plainly
    assert protobuf.repeated is not None


@given(drawn_rows(), st.data())
def test_both_take_the_same(
    drawn: tuple[list[str], list[list[object]]], data: st.DataObject
) -> None:
    """Each row either becomes the same key and line, or is handed back to the very decoder."""
    types, rows = drawn
    columns = [f"c{number}" for number, _ in enumerate(types)]
    keys = tuple(data.draw(st.permutations(columns)))[: data.draw(st.integers(1, len(columns)))]
    messages = [_row(data.draw(st.sampled_from([b"I", b"U"])), 7, row) for row in rows]
    results = []
    for scan in SCANS:
        route, touched = _route(types, keys), dict[Route, None]()
        get, left = _from(messages), len(messages)
        failed = []
        while left:
            size, message, taken, received, wal_end = scan(get, left, {_oid(7): route}, touched)
            assert received
            assert wal_end == (_WAL_END if taken > (message is not None) else 0)
            left -= taken
            if message is None:
                continue
            assert size == len(message) - len(PADDING)
            try:
                route.put(message, 2 if message[25:26] == b"U" else 1)
            except (StreamBroken, UnicodeDecodeError) as error:
                failed.append((left, repr(error)))
        changes = route.changes
        assert list(touched) in ([], [route])
        results.append((changes.actions, changes.keys, changes.lines, failed))
    assert results[0] == results[1]


_TEXTS = ["t\0\0", '"', "\\", "\x7f\x1f\b\f\n\r\t", "é\U0001f600", "", "x" * 70_000]


@pytest.mark.parametrize("value", _TEXTS)
def test_text_is_escaped_as_orjson_does(value: str) -> None:
    changes = []
    for scan in SCANS:
        route = _route(["int8", "text"])
        scan(_from([_row(b"I", 7, ["1", value])]), 9, {_oid(7): route}, {})
        changes.append(route.changes.lines)
    assert changes[0] == changes[1] and changes[0]


def test_bytes_that_are_no_text_fail_where_it_is_told() -> None:
    message = _row(b"I", 7, ["1", "é"]).replace("é".encode(), b"\xff\xfe")
    for scan in SCANS:
        route = _route(["int8", "text"])
        scanned = scan(_from([message]), 9, {_oid(7): route}, {})
        assert scanned[1] == message + PADDING
        assert not route.changes.actions and not route.changes.keys
        with pytest.raises(UnicodeDecodeError):
            route.put(message + PADDING, 1)


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
    assert tuple(scanned) == (len(message), message + PADDING, 2, received, _WAL_END)
    assert tuple(scan(get, 9, routes, touched)) == (0, None, 1, len(messages[2]), _WAL_END)
    assert route.changes.keys == [b"1", b"3"]


@pytest.mark.parametrize("scan", EACH)
def test_an_unchanged_value_is_left_to_the_decoder(scan: row_scan.Scan) -> None:
    route = _route(["int8", "text"])
    scan(_from([_row(b"U", 7, ["1", UNCHANGED])]), 9, {_oid(7): route}, {})
    null = _row(b"I", 7, [NULL, "a"])
    assert scan(_from([null]), 9, {_oid(7): route}, {})[1] in (None, null + PADDING)
    assert len(route.changes.keys) == len(route.changes.lines) == len(route.changes.actions)


@pytest.mark.parametrize("scan", EACH)
def test_the_limit_and_the_end(scan: row_scan.Scan) -> None:
    route = _route(["int8"])
    routes = {_oid(7): route, _oid(8): IGNORED}
    get = _from([_row(b"I", 7, [str(number)]) for number in range(5)], end=-1)
    assert tuple(scan(get, 3, routes, {}))[1:3] == (None, 3)
    assert tuple(scan(get, 9, routes, {}))[:3] == (-1, None, 2)
    assert route.changes.keys == [b"0", b"1", b"2", b"3", b"4"]
    assert tuple(scan(_from([]), 9, routes, {})) == (0, None, 0, 0, 0)


@compiled
@pytest.mark.parametrize("cut", [1, 3, 8, 12])
def test_a_message_cut_short_is_handed_back(cut: int) -> None:
    route = _route(["int8", "text"])
    message = _row(b"I", 7, ["12", "abcdef"])[:-cut]
    assert row_scan.scan(_from([message]), 9, {_oid(7): route}, {})[1] == message + PADDING
    assert not route.changes.keys


@pytest.mark.parametrize("scan", EACH)
def test_a_row_that_does_not_fill_its_message_is_refused_where_it_is_told(
    scan: row_scan.Scan,
) -> None:
    whole = _row(b"I", 7, ["12", NULL, "abcdef", "t"])
    for message in [*(whole[:size] for size in range(1, len(whole))), whole + b"n"]:
        route = _route(["int8", "text", "text", "bool"])
        scanned = scan(_from([message]), 9, {_oid(7): route}, {})
        assert scanned[1] == message + PADDING
        assert not route.changes.keys
        if len(message) > 33:
            with pytest.raises(StreamBroken, match="doesn't fill its message"):
                route.put(message + PADDING, 1)


def test_several_relations_take_turns() -> None:
    messages = [_row(b"I", 7 + number % 2, [str(number)]) for number in range(6)]
    for scan in SCANS:
        one, other, touched = _route(["int8"]), _route(["int8"]), dict[Route, None]()
        scan(_from(messages), 9, {_oid(7): one, _oid(8): other}, touched)
        assert one.changes.keys == [b"0", b"2", b"4"]
        assert other.changes.keys == [b"1", b"3", b"5"]
        assert list(touched) == [one, other]


@compiled
def test_an_interrupt_is_no_bad_row() -> None:
    """What an encoder is ended by isn't taken for a value that can't be used."""

    def interrupted(value: bytes) -> bytes:
        raise KeyboardInterrupt

    assert plain_rows.PlainRows is not None
    route = _route(["int8", "json"])
    route.plain = plain_rows.PlainRows(
        b"re", (b'{"c0":', b',"c1":'), (bytes, interrupted), (0,), bytes, *_sinks(route)
    )
    with pytest.raises(KeyboardInterrupt):
        row_scan.scan(_from([_row(b"I", 7, ["1", "{}"])]), 9, {_oid(7): route}, {})


def _sinks(route: Route) -> tuple[bytearray, list[bytes], list[bytes]]:
    return route.changes.actions, route.changes.keys, route.changes.lines


@given(st.lists(st.binary(max_size=300)), st.integers(1, 5000))
def test_a_repeated_field_is_the_same(values: list[bytes], field: int) -> None:
    repeated = protobuf.RepeatedBytes(field)
    assert repeated.joined(values) == b"".join(repeated.pieces(values))


@pytest.mark.parametrize("size", [0, 127, 128, 16_383, 16_384, 2_097_152])
def test_long_values_of_a_repeated_field(size: int) -> None:
    repeated = protobuf.RepeatedBytes(3)
    assert repeated.joined([bytes(size), b"a"]) == b"".join(repeated.pieces([bytes(size), b"a"]))


@pytest.mark.parametrize("scan", EACH)
def test_of_somebodys_long_message_only_the_beginning_is_handed_back(scan: row_scan.Scan) -> None:
    """Any role may write one of a gigabyte; libpq has two copies of it, and we none."""
    content = bytes(9) + b"somebody\0" + pack(">I", 5_000_000) + b"x" * 5_000_000
    handed = scan(_from([_xlog(b"M", content)]), 10, {}, {})
    message = handed[1]
    assert message is not None and len(message) == message_.KEPT_BYTES + len(PADDING)
    found = message_.emitted(message)
    assert (found.prefix, found.content) == (b"somebody", b"")
