"""Every format gives back what went in; others read it as docs/archive-format.md says."""

import io
from hashlib import sha256
from itertools import pairwise
from zlib import crc32

import orjson
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from laredo_archive import codec
from laredo_archive.codec import BadBytes, UnknownFormat, output
from laredo_archive.codec.zstd_frames import PlainBytes
from laredo_model.column import Column
from laredo_model.line import TRUNCATION, Action, Change
from tests.support import drawn
from tests.support.archive.encoding import write_diff, write_snapshot
from tests.support.archive.rows import Table, changes, tables

FORMATS = sorted(codec.FORMATS)
DIFF_FORMATS = sorted(codec.DIFF_FORMATS)
USERS = [Column("id", "int8", -1, False, 1, 1), Column("name", "text", -1, True, 2)]


def read_rows(format_id: str, columns: list[Column] | None, data: bytes, **more):
    pairs = []
    for keys, lines in codec.read_snapshot(format_id, columns, io.BytesIO(data), **more):
        pairs += zip(keys, lines, strict=True)
    return pairs


def users(count: int, size: int) -> dict[bytes, bytes]:
    return {
        b"%08d" % number: b'{"id":"%08d","name":"%s"}' % (number, b"x" * size)
        for number in range(count)
    }


KEYED_BY_TEXT = [Column("id", "text", -1, False, 1, 1), Column("name", "text", -1, True, 2)]


@pytest.mark.parametrize("format_id", FORMATS)
@given(data=st.data())
def test_snapshot_gives_back_every_line_and_key(format_id: str, data: st.DataObject) -> None:
    table: Table = data.draw(tables())
    rows = data.draw(table.rows())
    written, encoded = write_snapshot(format_id, table.columns, rows)
    assert read_rows(format_id, table.columns, written) == list(rows.items())
    assert encoded.size_bytes == len(written)
    assert encoded.sha256 == sha256(written).hexdigest()
    assert encoded.sorted
    assert encoded.records == len(rows)


@pytest.mark.parametrize("format_id", DIFF_FORMATS)
@given(data=st.data())
def test_diff_gives_back_every_change(format_id: str, data: st.DataObject) -> None:
    table: Table = data.draw(tables())
    before, after = data.draw(table.rows()), data.draw(table.rows())
    if data.draw(st.booleans()):
        expected = [TRUNCATION, *changes({}, after)]
    else:
        expected = changes(before, after)
    written, encoded = write_diff(format_id, table.columns, expected)
    read = list(codec.read_diff(format_id, table.columns, io.BytesIO(written)))
    assert read == expected
    assert encoded.sorted
    assert encoded.sha256 == sha256(written).hexdigest()


def test_jsonl_is_as_others_expect_it() -> None:
    rows = {b"1": b'{"id":1,"name":"Ada"}', b"2": b'{"id":2,"name":null}'}
    assert write_snapshot("jsonl", USERS, rows)[0] == (
        b'{"id":1,"name":"Ada"}\n{"id":2,"name":null}\n'
    )
    written = [
        TRUNCATION,
        Change(Action.INSERT, b"1", None, rows[b"1"]),
        Change(Action.UPDATE, b'a"b', rows[b"1"], rows[b"2"]),
        Change(Action.DELETE, b"2", rows[b"2"], None),
    ]
    assert write_diff("jsonl", USERS, written)[0].decode().splitlines() == [
        '{"action":"TRUNCATE"}',
        '{"action":"INSERT","key":"1","new":{"id":1,"name":"Ada"}}',
        '{"action":"UPDATE","key":"a\\"b","old":{"id":1,"name":"Ada"},"new":{"id":2,"name":null}}',
        '{"action":"DELETE","key":"2","old":{"id":2,"name":null}}',
    ]


def test_update_is_parted_at_its_own_new_not_at_one_inside_a_value() -> None:
    old = b'{"id":1,"doc":{"a":{"b":1},"new":{"c":2}}}'
    new = b'{"id":1,"doc":{"a":{"b":3},"new":{"c":4}}}'
    change = Change(Action.UPDATE, b"1", old, new)
    written, _ = write_diff("jsonl", USERS, [change])
    assert list(codec.read_diff("jsonl", None, io.BytesIO(written))) == [change]


@pytest.mark.parametrize("format_id", drawn.first(3, sorted(FORMATS, key=len)))
def test_splits_lead_to_their_rows(format_id: str) -> None:
    rows = users(3000, 20_000)
    written, encoded = write_snapshot(format_id, KEYED_BY_TEXT, rows, batch=250)
    if format_id == "parquet":  # a row group is whole batches
        assert len(encoded.splits) == 3
    elif format_id.endswith(".zst"):  # a frame has the rows that a block has
        assert len(encoded.splits) == 4
    else:
        assert [offset // output.SNAPSHOT_BLOCK for _, offset in encoded.splits] == [0, 1, 2, 3]
    ends = [offset for _, offset in encoded.splits[1:]] + [len(written)]
    pieces = []
    for (key, start), stop in zip(encoded.splits, ends, strict=True):
        piece = read_rows(format_id, KEYED_BY_TEXT, written, start=start, stop=stop)
        assert piece[0][0] == key.encode()
        pieces += piece
    assert pieces == list(rows.items())


@pytest.mark.parametrize("format_id", DIFF_FORMATS)
def test_splits_of_a_diff_begin_after_the_truncate_line(format_id: str) -> None:
    after = [Change(Action.INSERT, key, None, line) for key, line in users(1000, 1000).items()]
    written, encoded = write_diff(format_id, KEYED_BY_TEXT, [TRUNCATION, *after])
    plain, _ = write_diff(codec.plain_format(format_id), KEYED_BY_TEXT, [TRUNCATION, *after])
    if format_id.endswith(".zst"):
        assert PlainBytes(io.BytesIO(written)).read() == plain
    assert len(encoded.splits) == len(plain) // output.DIFF_BLOCK + 1

    def between(start: int | None, stop: int) -> list[Change]:
        file = io.BytesIO(written)
        return list(codec.read_diff(format_id, KEYED_BY_TEXT, file, start, stop))

    assert between(None, encoded.splits[0][1]) == [TRUNCATION]
    ends = [offset for _, offset in encoded.splits[1:]] + [len(written)]
    pieces = []
    for (key, start), stop in zip(encoded.splits, ends, strict=True):
        piece = between(start, stop)
        assert piece[0].key == key.encode()
        pieces += piece
    assert pieces == after


def test_splits_are_left_out_of_small_and_of_unsorted_files() -> None:
    small = users(3, 10)
    assert write_snapshot("jsonl", KEYED_BY_TEXT, small)[1].splits == ()
    mixed = dict(reversed(users(2000, 20_000).items()))
    _, encoded = write_snapshot("jsonl", KEYED_BY_TEXT, mixed)
    assert not encoded.sorted
    assert encoded.splits == ()


@given(st.integers(1, 40), st.lists(st.integers(0, 200), max_size=400))
@example(10, [100] * 400)
def test_splits_are_few_and_evenly_spread(limit: int, sizes: list[int]) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(output, "MAX_SPLITS", limit)
        kept = output.FileWriter(io.BytesIO(), 100)
        offsets, at = {}, 0
        for number, size in enumerate(sizes):
            key = b"%04d" % number
            offsets[key.decode()] = at
            kept.put([key], b"x" * size, lambda size=size: [size])
            at += size
        encoded = kept.close()
    assert len(encoded.splits) <= limit
    assert (len(encoded.splits) > 0) == (at >= 200)
    assert all(offsets[key] == offset for key, offset in encoded.splits)
    block = 100
    while at // block >= 2 * limit:
        block *= 2
    starts = [offset for _, offset in encoded.splits] + [at]
    gaps = [after - before for before, after in pairwise(starts)]
    assert all(gap <= 4 * block + 200 for gap in gaps)


@given(
    st.integers(2, 20), st.lists(st.binary(max_size=90), min_size=2, max_size=200), st.booleans()
)
def test_blocks_have_the_checksums_of_their_bytes(
    limit: int, rows: list[bytes], ends: bool
) -> None:
    """Also where splits were too many, and blocks became one; a footer is one for itself."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(output, "MAX_SPLITS", limit)
        sink = io.BytesIO()
        kept = output.FileWriter(sink, 100)
        kept.header(b"first")
        for number in range(0, len(rows), 3):
            some = rows[number : number + 3]
            keys = [b"%04d" % (number + place) for place in range(len(some))]
            kept.put(keys, b"".join(some), lambda some=some: map(len, some))
        if ends:
            footer_at = len(sink.getvalue())
            kept.footer(b"last")
        encoded = kept.close()
    written = sink.getvalue()
    starts = {0, *(at for _, at in encoded.splits), *([footer_at] if ends else [])}
    assert [at for at, _ in encoded.blocks] == (sorted(starts) if encoded.splits else [])
    stops = [*(at for at, _ in encoded.blocks[1:]), len(written)]
    for (start, checksum), stop in zip(encoded.blocks, stops, strict=False):
        assert checksum == crc32(written[start:stop])


@pytest.mark.parametrize(
    ("keys", "is_sorted"),
    [
        ([[b"a", b"b"], [b"c"]], True),
        ([[b"a", b"b"], [b"b"]], False),
        ([[b"b", b"a"]], False),
        ([[b"b"], [b"a"]], False),
        ([["é".encode(), "\U00010000".encode()]], True),
        ([[b"a", b"k" * 512]], False),
        ([[b"a", b"k" * 511]], True),
    ],
)
def test_sorted_is_claimed_only_of_sorted_files(keys: list[list[bytes]], is_sorted: bool) -> None:
    encoder = codec.snapshot_encoder("jsonl", KEYED_BY_TEXT, io.BytesIO())
    for batch in keys:
        encoder.write(batch, [b'{"id":%s}' % orjson.dumps(key.decode()) for key in batch])
    assert encoder.close().sorted is is_sorted


def test_rows_larger_than_every_block_pass() -> None:
    big = {b"1": b'{"id":1,"name":"%s"}' % (b"y" * 3_000_000), b"2": b'{"id":2,"name":"z"}'}
    for format_id in FORMATS:
        written, _ = write_snapshot(format_id, USERS, big)
        assert read_rows(format_id, USERS, written) == list(big.items())


@pytest.mark.parametrize("format_id", FORMATS)
@pytest.mark.parametrize("cut", [1, 2, 40, 90])
def test_a_cut_file_is_told(format_id: str, cut: int) -> None:
    rows = {b"%d" % n: b'{"id":%d,"name":"somebody with a name"}' % n for n in range(100, 150)}
    written, _ = write_snapshot(format_id, USERS, rows)
    if written[:-cut].endswith(b"}") or written[:-cut].endswith(b"\n"):
        return  # whole rows only: size and count tell
    with pytest.raises(BadBytes):
        read_rows(format_id, USERS, written[:-cut])


@pytest.mark.parametrize("format_id", FORMATS)
@given(noise=st.binary(min_size=1, max_size=300))
def test_noise_is_told_or_read_but_never_a_crash(format_id: str, noise: bytes) -> None:
    reads = [
        lambda: read_rows(format_id, USERS, noise),
        lambda: read_rows(format_id, None, noise),
    ]
    if format_id in codec.DIFF_FORMATS:
        reads += [
            lambda: list(codec.read_diff(format_id, USERS, io.BytesIO(noise))),
            lambda: list(codec.read_diff(format_id, None, io.BytesIO(noise))),
        ]
    for read in reads:
        try:
            read()
        except BadBytes:
            continue


def test_unknown_format_names_the_known_ones() -> None:
    with pytest.raises(
        UnknownFormat, match=r"'orc'.*jsonl, jsonl.zst, parquet, protobuf, protobuf.zst"
    ):
        codec.read_snapshot("orc", None, io.BytesIO())
    with pytest.raises(UnknownFormat, match=r"'parquet'.*jsonl, jsonl.zst, protobuf"):
        codec.read_diff("parquet", None, io.BytesIO())


def test_lines_of_other_writers_are_read() -> None:
    """No columns, another order of members, blanks, escapes that PostgreSQL doesn't use."""
    snapshot = b'{"name":"a\\u003cb","id":7}\n{"id": 8, "name": "x y"}\n{"id":"k\\n","n":1.50}'
    assert read_rows("jsonl", None, snapshot) == [
        (b"7", b'{"name":"a\\u003cb","id":7}'),
        (b"8", b'{"id":8,"name":"x y"}'),
        (b"k\n", b'{"id":"k\\n","n":1.50}'),
    ]
    diff = (
        b'{"key":"7","action":"UPDATE","new":{"id":7},"old":{"id":7,"v":[{"new":{}}]},"at":1}\n'
        b'{"action": "DELETE", "key": "8", "old": {"id": 8}, "new": null}\n'
        b'{"action":"DELETE","key":"9"}\n'
    )
    assert list(codec.read_diff("jsonl", None, io.BytesIO(diff))) == [
        Change(Action.UPDATE, b"7", b'{"id":7,"v":[{"new":{}}]}', b'{"id":7}'),
        Change(Action.DELETE, b"8", b'{"id":8}', None),
        Change(Action.DELETE, b"9", None, None),
    ]


def test_composite_key_of_lines_without_columns() -> None:
    snapshot = b'{"b":7,"v":{"b":1},"a":"x"}\n{"b":8,"v":null,"a":"y"}\n'
    assert [key for key, _ in read_rows("jsonl", None, snapshot, key_fields=["a", "b"])] == [
        b'["x",7]',
        b'["y",8]',
    ]
